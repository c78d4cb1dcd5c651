"""What an analysis says of small traces whose answer is known."""

import json
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.events import (
    NCCL,
    all_reduce,
    event,
    job,
    kernel,
    launch,
    mark,
    nans,
    one_step,
    written,
)
from weft.errors import UsageError
from weft.trace import analyze
from weft.trace.trace_collectives import is_collective_name, kind_of


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
        for index in range(10):
            at = 1000 * step + 20 * index
            events += [
                launch(at - 15, 10 * step + index),
                kernel(at, 15, f"k{index % 7}", 7, 10 * step + index),
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


def overlapping(pairs):
    """Steps of some products, which every second one overlaps with communication."""
    events = []
    for step in range(4):
        zero, over = 4000 * step, step % 2
        events.append(mark(step, zero, 3990))
        for n in range(pairs):
            number = 100 * step + n
            events += [launch(zero + n + 1, number)]
            events += [kernel(zero + 100 + 160 * n, 100 + 50 * over, "sgemm", 7, number)]
        events += [launch(zero + 40, 100 * step + 99)]
        events += [all_reduce(zero + (50 if over else 1900), 1800, 100 * step + 99)]
    return events


def test_kernels_at_the_same_place_are_compared(tmp_path):
    (slow,) = analyze(written(tmp_path / "a.json", overlapping(6))).ranks[0].slowdowns
    assert (slow.family, slow.num_pairs) == ("GEMM", 6)
    assert slow.median == pytest.approx(1.5)
    assert slow.lost == pytest.approx(6 * 100e-6)


@pytest.mark.parametrize("pairs", [1, 4])
def test_a_few_kernels_are_no_slowdown(tmp_path, pairs):
    assert not analyze(written(tmp_path / "a.json", overlapping(pairs))).ranks[0].slowdowns


def overlapping_steps(period, length, steps=5):
    """Steps whose all-reduce still runs when the next one computes."""
    events = []
    for step in range(steps):
        zero, number = period * step, 10 * step
        events += [
            mark(step, zero, period - 1),
            launch(zero + 1, number),
            kernel(zero + 10, period - 40, correlation=number),
            launch(zero + 2, number + 1),
            all_reduce(zero + period - 30, length, number + 1),
        ]
    return events


@pytest.mark.parametrize("length", [20.0, 90.0, 180.0])
def test_no_gpu_is_busy_for_more_than_all_of_a_step(tmp_path, length):
    rank = analyze(written(tmp_path / "a.json", overlapping_steps(200.0, length))).ranks[0]
    assert rank.step_time == pytest.approx(200e-6)
    assert rank.busy_share <= 1.0
    assert rank.mean_step.busy + rank.mean_idle == pytest.approx(rank.step_time)
    assert rank.mean_step.compute + rank.mean_step.exposed == pytest.approx(rank.mean_step.busy)
    assert rank.as_result()["busy_share"] == rank.busy_share


def test_a_step_alone_counts_what_its_gpu_still_did(tmp_path):
    """The GPU works on what was launched before for 60 of the 100 us of the only step."""
    events = [mark(1, 0, 100), kernel(-20, 80, correlation=77), launch(50, 1)]
    rank = analyze(written(tmp_path / "a.json", [*events, kernel(70, 40, "k", 7, 1)])).ranks[0]
    assert rank.busy_share == pytest.approx(0.9)
    assert rank.mean_idle == pytest.approx(10e-6)


def test_a_family_of_kernels_takes_no_longer_than_the_step(tmp_path):
    """Two streams multiply at the same time."""
    events = []
    for step in range(4):
        zero = 100.0 * step
        events.append(mark(step, zero, 99))
        for n in range(2):
            number = 10 * step + n
            events += [launch(zero + n, number), kernel(zero + 5, 95, "sgemm", 7 + n, number)]
    rank = analyze(written(tmp_path / "a.json", events)).ranks[0]
    (family,) = rank.kernels
    assert family.what == "matrix products"
    assert family.seconds == pytest.approx(95e-6)


def test_the_step_time_of_uneven_steps_is_their_mean(tmp_path):
    events, now = [], 0.0
    for step, period in enumerate((100, 100, 100, 500, 100, 100, 100, 500, 50_000, 100)):
        events += [
            mark(step, now, period - 1),
            launch(now + 1, step),
            kernel(now + 9, 50, "k", 7, step),
        ]
        now += period
    rank = analyze(written(tmp_path / "a.json", events)).ranks[0]
    assert rank.step_time == pytest.approx(200e-6)  # without the one that stumbled
    assert any("1 of 9 steps took over ten times the median" in note for note in rank.notes)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)",
            "all_reduce",
        ),
        ("void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16>(int)", "all_reduce"),
        ("two_shot_all_reduce_kernel_inplace", "all_reduce"),
        ("multimem_all_gather_kernel", "all_gather"),
        ("_low_contention_reduce_scatter", "reduce_scatter"),
        ("void c10d::symmetric_memory::barrier_kernel<>()", "barrier"),
        ("(anonymous namespace)::barrier_kernel(unsigned int**, int, int)", "barrier"),
        ("void internode_ll::dispatch<true>(void*)", "all_to_all"),
        ("void deep_ep::internode::combine<8>(int)", "all_to_all"),
        ("all_to_all_vdev_kernel", "all_to_all"),
        ("rcclDevKernel_AllGather(ncclDevComm*)", "all_gather"),
        ("lamport_allreduce_kernel", "all_reduce"),
    ],
)
def test_kernels_of_collectives_are_known_by_their_names(name, kind):
    assert is_collective_name(name)
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1>()",
        "triton_poi_fused_all_gather_into_tensor_clone_3",
        "void at::native::vectorized_gather_kernel<16>()",
        "scatter_reduce_kernel",
    ],
)
def test_kernels_that_only_sound_like_collectives_are_not(name):
    assert not is_collective_name(name)


@pytest.mark.parametrize("depth", [2, 5, 900, 5000])
def test_shapes_that_are_nested_deeply_are_no_shapes(tmp_path, depth):
    about = {"Input Dims": "@", "Input type": ["float"]}
    asked = event("nccl:all_reduce", "user_annotation", 0.5, 5, 1, **about)
    events = [mark(1, 0, 100), asked, launch(1, 1), kernel(10, 30, NCCL, 20, 1)]
    path = written(tmp_path / "a.json", events)
    path.write_text(path.read_text().replace('"@"', "[" * depth + "]" * depth))
    (use,) = analyze(path).ranks[0].collectives
    assert use.nbytes is None


def test_tables_for_pandas_need_a_known_name(tmp_path):
    analysis = analyze(written(tmp_path / "a.json", one_step()))
    with pytest.raises(UsageError, match="what: unknown table 'nothing'"):
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


def test_kernels_of_equal_shapes_are_one_row_of_the_table(tmp_path):
    """Sequence numbers and scalars differ from call to call; shapes do not."""
    events, shape = [], {"Input Dims": [[8, 4]], "Input type": ["float"]}
    for number in range(3):
        at = 100 * number
        events += [
            event("record_param_comms", "cpu_op", at, 10, 1, Seq=number, **shape),
            launch(at + 1, 2 * number),
            all_reduce(at + 20, 30, 2 * number),
            event(
                "aten::fill_", "cpu_op", at + 12, 10, 1, **shape, **{"Concrete Inputs": [number]}
            ),
            launch(at + 13, 2 * number + 1),
            kernel(at + 60, 5, "fill", correlation=2 * number + 1),
        ]
    table = analyze(written(tmp_path / "a.json", events)).ranks[0].kernel_table
    assert [(use.operator, use.count) for use in table] == [
        ("record_param_comms", 3),
        ("aten::fill_", 3),
    ]


def host_step(at):
    """A step of a CPU rank: 20 us of an op, an exchange of 50 us that is waited for, 20 us more."""
    return [
        event("aten::mm", "cpu_op", at, 20, 1),
        event("_c10d_functional::all_reduce", "cpu_op", at + 21, 4, 1),
        event("gloo:all_reduce", "user_annotation", at + 25, 50, 2),
        event("autograd::engine::evaluate_function: F", "cpu_op", at + 26, 64, 1),
        event("_c10d_functional::wait_tensor", "cpu_op", at + 27, 48, 1),
        event("aten::add", "cpu_op", at + 80, 10, 1),
    ]


def test_a_cpu_rank_that_waits_for_a_collective_does_not_compute(tmp_path):
    rank = analyze(written(tmp_path / "a.json", host_step(0))).ranks[0]
    assert rank.total.compute == pytest.approx(30e-6)
    assert rank.total.communication == pytest.approx(50e-6)
    assert rank.total.exposed == pytest.approx(50e-6)


def test_collectives_of_a_cpu_rank_have_the_sizes_of_their_ranges(tmp_path):
    shape = {"Input Dims": [[64, 512]], "Input type": ["float"]}
    events = [
        event("aten::mm", "cpu_op", 0, 20, 1),
        event("gloo:all_reduce", "user_annotation", 25, 50, 2, **shape),
        event("gloo:all_gather", "user_annotation", 85, 50, 2, **shape),
    ]
    uses = analyze(written(tmp_path / "a.json", events)).ranks[0].collectives
    assert [(use.kind, use.nbytes) for use in uses] == [
        ("all_reduce", 4 * 64 * 512),
        ("all_gather", 2 * 4 * 64 * 512),
    ]


def test_the_critical_path_of_a_cpu_rank_is_its_work(tmp_path):
    events = [each for n in range(4) for each in (mark(n, 100 * n, 99), *host_step(100 * n))]
    path = analyze(written(tmp_path / "a.json", events)).ranks[0].path
    assert path is not None
    parts = {part.what: part.seconds for part in path.parts}
    assert parts["compute"] == pytest.approx(30e-6)
    assert parts["moving bytes"] == pytest.approx(50e-6)
    assert sum(parts.values()) == pytest.approx(path.seconds)
