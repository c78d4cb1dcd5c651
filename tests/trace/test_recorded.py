"""Traces that PyTorch writes here, today: the host alone, and with its execution trace."""

import pytest

from weft.trace import EventKind, analyze
from weft.trace.formats.reading import read_any, read_traces
from weft.trace.formats.trace_files import trace_files

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def record(folder, observer=None):
    """Record two steps, as the guide says, without a GPU."""
    from torch.profiler import ProfilerActivity, profile, schedule

    path = folder / "rank0.json.gz"
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(path)),
        record_shapes=True,
        execution_trace_observer=observer,
    ) as prof:
        for _ in range(4):
            model(torch.ones(2, 8)).sum().backward()
            prof.step()
    return path


def test_a_trace_of_the_host_alone_has_steps_and_says_what_is_missing(tmp_path):
    rank = analyze(record(tmp_path)).ranks[0]
    assert [step.name for step in rank.steps] == ["ProfilerStep#2", "ProfilerStep#3"]
    assert rank.total.busy == 0
    assert any("no GPU event" in note for note in rank.notes)
    linear = [row for row in range(len(rank.trace)) if rank.trace.name_of(row) == "aten::addmm"]
    assert rank.trace.detail_of(linear[0])["Input Dims"][1] == [2, 8]


def test_todays_execution_trace_is_joined_with_todays_kineto(tmp_path):
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "et.json"))
    path = record(tmp_path, observer)
    observer.unregister_callback()
    (trace,) = read_traces(trace_files([path, tmp_path / "et.json"])).traces
    graph = read_any(tmp_path / "et.json")
    assert trace.graph == graph
    assert trace.nodes is not None
    ops = trace.columns.kind == EventKind.OP
    names = [trace.name_of(row) for row in range(len(trace)) if trace.nodes[row] >= 0]
    found = [trace.graph.nodes[index].name for index in trace.nodes[trace.nodes >= 0].tolist()]
    assert names == found
    assert (trace.nodes[ops] >= 0).mean() > 0.8
