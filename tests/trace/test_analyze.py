"""What an analysis says of small traces whose answer is known, and of bad ones."""

import gzip
import json
import math
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.events import all_reduce, event, job, kernel, launch, mark, text, written
from weft.errors import FormatError, UsageError
from weft.trace import analyze, analyze_traces, read


def one_step(**more):
    """A step of 100 us: 30 of compute, 40 of communication, 10 of both, 30 idle in between."""
    return [
        mark(1, 0, 100),
        launch(1, 1),
        kernel(10, 30, correlation=1),
        launch(2, 2),
        all_reduce(30, 40, correlation=2, **more),
    ]


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


def test_the_last_rank_makes_the_others_wait(tmp_path):
    analysis = analyze(job(tmp_path, (200.0, 700.0)))
    early, late = analysis.ranks
    assert [r.basis for r in analysis.ranks] == ["measured", "measured"]
    assert early.total.moving == pytest.approx(3 * 200e-6)
    assert early.total.waiting == pytest.approx(3 * 500e-6)
    assert late.total.waiting == pytest.approx(0)
    assert [(s.rank, s.num_last) for s in analysis.stragglers] == [(1, 3)]
    assert "kernels took" in analysis.stragglers[0].why
    assert "rank 1" in analysis.advice[0].title
    assert analysis.aligned_within == pytest.approx(0, abs=1e-9)


def test_clocks_that_disagree_are_moved(tmp_path):
    apart = analyze(job(tmp_path, (200.0, 700.0), clocks=(0.0, 5e6)))
    assert apart.ranks[0].total.waiting == pytest.approx(3 * 500e-6)
    assert apart.aligned_within == pytest.approx(0, abs=1e-9)
    assert any("clock of rank 1 was" in note for note in apart.notes)


def test_clocks_that_drift_apart_are_brought_together(tmp_path):
    paths = job(tmp_path, (200.0, 700.0), steps=30)
    whole = json.loads(paths[1].read_text())
    for each in whole["traceEvents"]:
        each["ts"] *= 1.01
    paths[1].write_text(json.dumps(whole))
    analysis = analyze(paths)
    assert analysis.aligned_within is not None
    assert analysis.aligned_within < 10e-6
    assert analysis.ranks[0].total.waiting == pytest.approx(30 * 500e-6, rel=0.03)


def test_collectives_match_by_their_numbers_when_a_file_begins_later(tmp_path):
    paths = []
    for rank, first in enumerate((0, 1)):
        events = []
        for step in range(first, 4):
            events += [
                launch(1000 * step + 1, step),
                all_reduce(1000 * step + 100 * (1 + rank), 900 - 100 * (1 + rank), step, Seq=step),
            ]
        paths.append(written(tmp_path / f"{rank}.json", events, rank=rank))
    early, late = analyze(paths).ranks
    assert late.total.waiting == pytest.approx(0, abs=1e-9)
    assert [use.basis for use in early.collectives] == ["estimated", *["measured"] * 3]
    assert [use.waiting for use in early.collectives[1:]] == pytest.approx([100e-6] * 3)


@pytest.mark.parametrize("missing", [1, 3])
def test_a_file_that_begins_later_is_matched_by_sizes(tmp_path, missing):
    paths = []
    for rank, first in enumerate((0, missing)):
        events = []
        for step in range(first, 9):
            size, after = 1024 * (1 + step % 4), 100 * (1 + rank)
            end = 1000 * step + 900
            events += [
                launch(1000 * step, step),
                all_reduce(end - 800 + after, 800 - after, step, size),
            ]
        paths.append(written(tmp_path / f"{rank}.json", events, rank=rank))
    early, late = analyze(paths).ranks
    assert late.total.waiting == pytest.approx(0, abs=1e-9)
    measured = [use.waiting for use in early.collectives if use.basis == "measured"]
    assert measured == pytest.approx([100e-6] * (9 - missing))


def test_old_files_have_the_rank_of_their_name(tmp_path):
    paths = job(tmp_path, (200.0, 700.0))
    for path in paths:
        whole = json.loads(path.read_text())
        del whole["distributedInfo"]
        path.write_text(json.dumps(whole))
    analysis = analyze(paths)
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    assert analysis.ranks[0].total.waiting == pytest.approx(3 * 500e-6)


def test_one_rank_of_eight_is_an_estimate_and_says_so(tmp_path):
    analysis = analyze(written(tmp_path / "a.json", one_step(), world_size=8))
    assert any("1 of 8 ranks" in note for note in analysis.notes)
    assert analysis.ranks[0].basis == "estimated"


def test_copies_of_a_file_are_left_out(tmp_path):
    path = written(tmp_path / "a.json", one_step())
    analysis = analyze([path, written(tmp_path / "b.json.gz", one_step())])
    assert len(analysis.ranks) == 1
    assert any("is a copy of" in note for note in analysis.notes)


def test_files_of_different_jobs_are_not_mixed(tmp_path):
    (tmp_path / "x").mkdir()
    mixed = [
        *job(tmp_path, (200.0, 700.0)),
        *job(tmp_path / "x", (100.0, 100.0, 100.0), clocks=(0,) * 3),
    ]
    analysis = analyze(mixed)
    assert len(analysis.ranks) == 5
    assert any("different jobs" in note for note in analysis.notes)
    assert analysis.world_size is None


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


def nans(value):
    if isinstance(value, dict):
        return [n for inner in value.values() for n in nans(inner)]
    if isinstance(value, list | tuple):
        return [n for inner in value for n in nans(inner)]
    return [value] if isinstance(value, float) and not math.isfinite(value) else []


def test_a_cut_packed_file_is_read_as_far_as_it_goes(tmp_path):
    path = written(
        tmp_path / "a.json.gz", [kernel(10 * i, 5, f"kernel {i * 7919}") for i in range(5000)]
    )
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    trace = read(path)
    assert 500 < trace.num_events < 5000
    assert any("cut short" in loss for loss in trace.losses)
    assert analyze(path).ranks[0].total.num_gpu_events == trace.num_events


def test_a_damaged_packed_file_says_so(tmp_path):
    path = written(tmp_path / "a.json.gz", [kernel(10 * i, 5, f"k{i * 7919}") for i in range(5000)])
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 :] = bytes(len(raw) - len(raw) // 2)
    path.write_bytes(raw)
    assert any("damaged" in loss or "cut short" in loss for loss in read(path).losses)


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


@settings(max_examples=60)
@given(cut=st.integers(0, 2000))
def test_a_packed_file_cut_anywhere_is_read_or_refused(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "a.json.gz"
    path.write_bytes(gzip.compress(text(one_step()))[:cut])
    try:
        analyze(path)
    except FormatError as error:
        assert "no trace" in str(error) or "is empty" in str(error)  # noqa: PT017 - either outcome is right
