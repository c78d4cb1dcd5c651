"""Files that are cut, damaged, old or hostile are read as far as they go, or refused."""

import gzip
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.events import (
    all_reduce,
    event,
    kernel,
    launch,
    one_step,
    text,
    written,
)
from weft.cli import main
from weft.errors import FormatError, UsageError
from weft.trace import analyze, analyze_traces, read
from weft.trace.formats.file_pieces import FilePieces


def test_a_cut_packed_file_is_read_as_far_as_it_goes(tmp_path):
    path = written(
        tmp_path / "a.json.gz", [kernel(10 * i, 5, f"kernel {i * 7919}") for i in range(5000)]
    )
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    trace = read(path)
    assert 500 < trace.num_events < 5000
    assert any("truncated" in loss for loss in trace.losses)
    assert analyze(path).ranks[0].total.num_gpu_events == trace.num_events


def test_a_damaged_packed_file_says_so(tmp_path):
    path = written(tmp_path / "a.json.gz", [kernel(10 * i, 5, f"k{i * 7919}") for i in range(5000)])
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 :] = bytes(len(raw) - len(raw) // 2)
    path.write_bytes(raw)
    assert any("damaged" in loss or "truncated" in loss for loss in read(path).losses)


def test_invalid_json_is_skipped_and_said(tmp_path):
    raw = text([kernel(10 * i, 5) for i in range(100)])
    place = raw.index(b'"ts": 500')
    path = tmp_path / "a.json"
    path.write_bytes(raw[:place] + b"}}garbage{{" + raw[place:])
    trace = read(path)
    assert trace.num_events == 99
    (loss,) = trace.losses
    assert (
        f"byte {raw.rindex(b'{', 0, raw.rindex(b'{', 0, place))}" in loss
        or "invalid JSON at byte" in loss
    )


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"hello": 1}')
    with pytest.raises(FormatError, match="no trace") as error:
        read(path)
    assert "export_chrome_trace" in error.value.hint


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FormatError, match="cannot read"):
        read(tmp_path / "none.json")


def test_no_file_at_all_is_refused():
    with pytest.raises(UsageError, match="no trace"):
        analyze([])


def test_hostile_names_go_through(tmp_path):
    name = "<script>alert('x')</script>\"\\\n\u202e\x00"
    path = written(tmp_path / "a.json", [launch(0, 1), kernel(5, 5, name, correlation=1)])
    assert name in read(path).names


def test_a_hundred_thousand_nested_operators_are_read(tmp_path):
    count = 100_000
    nested = [event("op", "cpu_op", i, 2 * (count - i), 1) for i in range(count)]
    trace = read(
        written(
            tmp_path / "a.json", [*nested, launch(count, 1), kernel(count + 5, 5, correlation=1)]
        )
    )
    assert len(trace.ancestors(count)) == count
    analyze_traces([trace])


@pytest.mark.parametrize("unit", [1, 1000])
def test_times_may_be_in_nanoseconds(tmp_path, unit):
    zero = 1_700_000_000_000_000 * unit
    events = [kernel(zero + 10 * unit, 5 * unit), kernel(zero + 20 * unit, 5 * unit)]
    rank = analyze(written(tmp_path / "a.json", events)).ranks[0]
    assert rank.span == pytest.approx(15e-6)


def test_categories_of_2021_are_understood(tmp_path):
    events = [
        event("ProfilerStep#3", "Operator", 0, 50, 1),
        event("aten::mm", "Operator", 1, 9, 1),
        event("cudaLaunchKernel", "Runtime", 2, 5, 1, correlation=4),
        event("sgemm", "Kernel", 10, 5, 7, stream=7, correlation=4, device=0),
        event("Memcpy HtoD", "Memcpy", 20, 5, 7, stream=7, device=0, bytes=12),
        event("Memset", "Memset", 30, 5, 7, stream=7, device=0),
    ]
    rank = analyze(written(tmp_path / "a.json", events)).ranks[0]
    assert rank.total.num_gpu_events == 3
    assert [step.name for step in rank.steps] == ["ProfilerStep#3"]
    assert rank.steps[0].split.num_gpu_events == 1


@settings(max_examples=60)
@given(cut=st.integers(0, 2000))
def test_a_packed_file_cut_anywhere_is_read_or_refused(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "a.json.gz"
    path.write_bytes(gzip.compress(text(one_step()))[:cut])
    try:
        analyze(path)
    except FormatError as error:
        assert "trace" in str(error) or "is empty" in str(error)  # noqa: PT017 - either outcome is right


YEARS = 9e15  # microseconds


@pytest.mark.parametrize(
    "odd",
    [
        *(kernel(30 + YEARS, 5), kernel(30 - YEARS, 5), kernel(30, YEARS)),
        event("op", "cpu_op", -YEARS, 5, 1),
    ],
)
def test_times_that_cannot_be_are_left_out_and_said(tmp_path, odd):
    path = written(tmp_path / "a.json", [kernel(10, 5), odd, kernel(20, 5)])
    rank = analyze(path).ranks[0]
    assert rank.total.num_gpu_events == 2
    assert rank.span == pytest.approx(15e-6)
    assert rank.trace.losses == ("skipped 1 events with invalid timestamps",)


def test_a_file_whose_events_all_take_no_time_is_analysed(tmp_path, capsys):
    path = written(tmp_path / "a.json", [kernel(0, 0)] * 3)
    assert main(["analyze", str(path)]) == 0
    assert "GPU busy 0.0 %" in capsys.readouterr().out


def test_a_device_of_any_number_takes_no_memory(tmp_path):
    path = written(tmp_path / "a.json", [event("k", ts=0, device=2**31 - 1, stream=1)])
    assert read(path).device == "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize("value", [-5, 10**30, 10**400, "x", 1.5, [1], None])
@pytest.mark.parametrize("key", ["Out msg nelems", "Group size"])
def test_counts_of_a_collective_that_count_nothing_are_not_taken(tmp_path, key, value):
    odd = all_reduce(80, 5)
    odd["args"][key] = value
    (use,) = analyze(written(tmp_path / "a.json", [odd])).ranks[0].collectives
    assert use.nbytes == (None if key == "Out msg nelems" else 4096)
    assert use.num_ranks == 2


def test_a_group_of_ranks_beyond_counting_is_as_if_not_given(tmp_path):
    about = {"Process Group Ranks": "[" + "9" * 6000 + "]"}
    assert analyze(written(tmp_path / "a.json", one_step(**about))).ranks[0].collectives


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(FormatError, match="pipe") as error:
        read(tmp_path / "a.json")
    assert "file" in error.value.hint


def test_a_packed_file_that_fails_as_it_is_read_says_so(tmp_path, monkeypatch):
    path = written(tmp_path / "a.json.gz", [kernel(10, 5)])

    def broken(_pieces):
        yield text([kernel(10, 5)])[:-2]
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FilePieces, "_unpacked", broken)
    assert any("Input/output error" in loss for loss in read(path).losses)


@pytest.mark.parametrize("runtime", ["nan", "inf", -5, 10**400])
def test_a_graph_with_times_that_are_none_is_refused(tmp_path, runtime):
    node = {"id": 1, "name": "k", "is_cpu_op": False, "runtime": runtime}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"workload_graph": [node]}))
    with pytest.raises(FormatError, match="Chakra graph"):
        read(path)


def test_a_graph_with_a_stream_of_any_number_is_read(tmp_path):
    node = {"id": 1, "name": "k", "is_cpu_op": False, "runtime": 5, "node_type": 2**40}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"workload_graph": [node]}))
    assert len(read(path).gpu) == 1
