"""What an analysis says of small traces whose answer is known."""

import json
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.events import all_reduce, event, job, kernel, launch, mark, nans, one_step, written
from weft.errors import UsageError
from weft.trace import analyze


def test_a_step_is_divided(tmp_path):
    rank = analyze(written(tmp_path / "a.json", one_step())).ranks[0]
    total = rank.total
    assert total.num_gpu_events == 2
    assert rank.trace.num_events == 5
    seconds = (rank.span, total.busy, total.compute, total.communication, total.exposed)
    assert seconds == pytest.approx((60e-6, 60e-6, 30e-6, 40e-6, 30e-6))
    (step,) = rank.steps
    assert (step.name, step.period) == ("ProfilerStep#1", None)
    assert step.wall == pytest.approx(100e-6)
    assert step.split == total
    assert total.waiting is not None
    assert total.moving is not None
    assert total.waiting + total.moving == pytest.approx(total.communication)
    assert rank.basis == "estimated"


def test_work_without_a_launch_is_backlog(tmp_path):
    events = [*one_step(), kernel(0, 5, correlation=77)]
    rank = analyze(written(tmp_path / "a.json", events)).ranks[0]
    assert rank.backlog is not None
    assert rank.backlog.num_gpu_events == 1
    assert rank.backlog.busy == pytest.approx(5e-6)
    assert rank.steps[0].split.num_gpu_events == 2
    assert rank.total.busy == pytest.approx(65e-6)


def test_work_that_runs_late_belongs_to_the_step_that_launched_it(tmp_path):
    events = [
        *(mark(step, 100 * step, 100) for step in range(3)),
        *(launch(100 * step + 1, step) for step in range(3)),
        *(kernel(1000 + 150 * step, 140, correlation=step) for step in range(3)),
    ]
    rank = analyze(written(tmp_path / "a.json", events)).ranks[0]
    assert [step.split.busy for step in rank.steps] == pytest.approx([140e-6] * 3)
    assert [step.period for step in rank.steps] == [
        pytest.approx(150e-6),
        pytest.approx(150e-6),
        None,
    ]
    assert rank.step_time == pytest.approx(150e-6)
    assert rank.is_gpu_bound


@pytest.mark.parametrize(
    ("events", "note"),
    [
        ([], "no GPU event"),
        ([event("aten::mm", "cpu_op", 0, 5)], "no GPU event"),
        ([launch(0, 1), kernel(5, 5, correlation=1)], "no communication"),
    ],
)
def test_what_a_file_lacks_is_said(tmp_path, events, note):
    analysis = analyze(written(tmp_path / "a.json", events))
    (row,) = analysis.rows()
    assert any(note in each for each in row["notes"])
    assert not nans(row)


def test_steps_are_found_where_none_are_marked(tmp_path):
    events = []
    for step in range(6):
        for place in range(10):
            at = 1000 * step + 20 * place
            events += [
                launch(at - 15, 10 * step + place),
                kernel(at, 15, f"k{place % 7}", 7, 10 * step + place),
            ]
    rank = analyze(written(tmp_path / "a.json", events)).ranks[0]
    assert rank.steps_found
    assert [step.period for step in rank.steps] == pytest.approx([1000e-6] * 5)
    assert rank.steps[0].split.busy == pytest.approx(150e-6)


def test_idle_time_has_reasons_that_sum_up(tmp_path):
    events = [
        launch(0, 1),
        kernel(10, 10, correlation=1),
        event(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            "user_annotation",
            25,
            50,
            1,
        ),
        event("aten::mm", "cpu_op", 80, 20, 1),
        launch(90, 2, dur=5),
        kernel(100, 10, correlation=2),
        launch(91, 3),
        kernel(112, 10, correlation=3),
    ]
    idle = {p.what: p.seconds for p in analyze(written(tmp_path / "a.json", events)).ranks[0].idle}
    assert idle == pytest.approx(
        {
            "loading data": 50e-6,
            "operators on the host": 10e-6,
            "launch until start": 10e-6,
            "Python, other host work": 10e-6,
            "between queued kernels": 2e-6,
        }
    )


def test_the_critical_path_sums_up_and_names_the_host(tmp_path):
    path = analyze(written(tmp_path / "a.json", one_step())).ranks[0].path
    assert path is not None
    assert path.seconds == pytest.approx(100e-6)
    assert sum(part.seconds for part in path.parts) == pytest.approx(100e-6)
    assert {part.what for part in path.parts} >= {"host", "waiting for other ranks"}


def test_kernels_at_the_same_place_are_compared(tmp_path):
    events = []
    for step in range(4):
        zero, over = 1000 * step, step % 2
        events += [
            mark(step, zero, 990),
            launch(zero + 1, 2 * step),
            launch(zero + 2, 2 * step + 1),
        ]
        events += [kernel(zero + 100, 100 + 50 * over, "sgemm", correlation=2 * step)]
        events += [all_reduce(zero + (50 if over else 500), 300, correlation=2 * step + 1)]
    (slow,) = analyze(written(tmp_path / "a.json", events)).ranks[0].slowdowns
    assert (slow.family, slow.num_pairs) == ("GEMM", 1)
    assert slow.median == pytest.approx(1.5)
    assert slow.lost == pytest.approx(100e-6)


def test_tables_for_pandas_need_a_known_name(tmp_path):
    analysis = analyze(written(tmp_path / "a.json", one_step()))
    with pytest.raises(UsageError, match="no table"):
        analysis.to_pandas("nothing")


def test_pandas_has_a_row_a_step(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    analysis = analyze(job(tmp_path, (200.0, 700.0)))
    assert len(analysis.to_pandas()) == 6
    assert len(analysis.to_pandas("collectives")) == 6
    assert [row["rank"] for row in analysis.to_pandas("ranks")] == [0, 1]


def test_without_pandas_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pandas is not installed"):
        analyze(written(tmp_path / "a.json", one_step())).to_pandas()


SPANS = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXXXisfM"),
        "cat": st.sampled_from(
            ["kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "user_annotation", ""]
        ),
        "name": st.sampled_from(
            ["gemm", "ncclDevKernel_AllGather", "ProfilerStep#1", "ProfilerStep#2", "<b>"]
        ),
        "pid": st.sampled_from([0, 1, "Spans"]),
        "tid": st.sampled_from([1, 7]),
        "ts": st.integers(0, 60) | st.floats(0, 60),
        "dur": st.integers(-1, 30) | st.floats(0, 30),
        "args": st.fixed_dictionaries(
            {},
            optional={
                "correlation": st.integers(-1, 8),
                "stream": st.integers(-1, 9),
                "In msg nelems": st.integers(0, 10**9) | st.text(max_size=2),
                "dtype": st.sampled_from(["Float", "", "x"]),
                "Input Dims": st.sampled_from([[], [[4]], [["x"]], "y", [[[2]]]]),
                "Input type": st.sampled_from([[], ["float"], None]),
                "Process Group Ranks": st.sampled_from(["[0, 1]", "[0, ..", 3]),
            },
        ),
    }
)


@settings(max_examples=60)
@given(events=st.lists(SPANS, max_size=25), other=st.lists(SPANS, max_size=8))
def test_whatever_a_trace_holds_its_analysis_adds_up(tmp_path_factory, events, other):
    folder = tmp_path_factory.mktemp("fuzz")
    paths = [
        written(folder / "0.json", events),
        written(folder / "1.json", [*events, *other], rank=1),
    ]
    analysis = analyze(paths)
    for row in analysis.rows():
        assert not nans(row)
        assert row["busy"] == pytest.approx(row["compute"] + row["exposed"], abs=1e-9)
        assert row["busy"] <= row["span"] + 1e-9
        assert row["exposed"] <= row["communication"] + 1e-9
        if row["waiting"] is not None:
            assert row["waiting"] + row["moving"] == pytest.approx(row["communication"], abs=1e-9)
        idle = sum(part["seconds"] for part in row["idle_reasons"])
        assert idle == pytest.approx(row["idle"], abs=1e-9)
    json.dumps(list(analysis.rows()))
