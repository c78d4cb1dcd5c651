"""Advice is ranked by the replay, and says of a gain what weft whatif says of it."""

from __future__ import annotations

import pytest

import weft
from tests.trace.events import all_reduce, event, kernel, launch, mark, written
from tests.whatif.jobs import (
    apart,
    back,
    busy_steps,
    exposed_steps,
    graph_steps,
    layered_steps,
    preprocessing_steps,
    straggling,
    uneven_steps,
)
from tests.whatif.player import Do, play
from weft.trace import analyze as bounds_of
from weft.trace import read
from weft.trace.analysis.analysis_result import BOUND, REPLAYED
from weft.whatif import analyze, what_if_jobs

# A copy back in the middle: until it is done the host launches nothing, and then it is late.
WAITS = [
    *(Do(seconds=60.0, gap=30.0) for _ in range(4)),
    Do(back=True, seconds=2.0, gap=1.0),
    *(Do(seconds=60.0, gap=50.0, op=f"after{n}") for n in range(4)),
]
LATE = (200.0, 900.0, 260.0)
SHIFTS = ((0, 0, 0, 0), (0, 29_000, -29_000, 58_000))  # microseconds between clocks, by step


def one(folder, events, **more):
    return [written(folder / "rank0.json", events, **more)]


def several(folder, made, count):
    return [
        written(folder / f"rank{rank}.json", made(rank), rank=rank, world_size=count)
        for rank in range(count)
    ]


MADE_UP = {
    "graph": lambda folder: one(folder, graph_steps()),
    "wide graph": lambda folder: one(folder, graph_steps(busy=100.0, gap=180.0)),
    "preprocessing": lambda folder: one(folder, preprocessing_steps()),
    "exposed": lambda folder: one(folder, exposed_steps()),
    "no device": lambda folder: one(folder, exposed_steps(), deviceProperties=[]),
    "busy": lambda folder: one(folder, busy_steps()),
    "waits": lambda folder: one(folder, play([WAITS] * 5)[0]),
    "layers": lambda folder: one(folder, layered_steps()),
    "straggler": lambda folder: several(folder, lambda rank: straggling(rank, LATE), 3),
}


def assert_as_whatif(paths):
    """Check every gain of an advice against the change that it names, asked for by itself."""
    analysis = weft.analyze(paths)
    replayed = [each for each in analysis.advice if each.basis == REPLAYED]
    for each in replayed:
        answers = what_if_jobs([read(path) for path in paths], [each.change], anyway=True)
        found = [o for answer in answers for o in answer.outcomes if o.name == each.change]
        assert each.share in [pytest.approx(outcome.gain) for outcome in found]
    return analysis


@pytest.mark.parametrize("make", MADE_UP.values(), ids=MADE_UP)
def test_advice_and_whatif_state_the_same_gain(tmp_path, make):
    analysis = assert_as_whatif(make(tmp_path))
    assert analysis.advice
    shares = [each.share for each in analysis.advice if each.basis == REPLAYED]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.data
@pytest.mark.parametrize(
    "pattern",
    [
        "param_dlrm_8xV100/kineto/rank*.json.gz",
        "hta_traces/nccl_meta_2xA100_rank0.json.gz",
        "hta_traces/single_V100_rank0_ns.json.gz",
        "tracelens/traces/resnet_ddp_8xMI300X_rank0.json.gz",
        "tracelens/traces/qwen1.5-0.5b_H100_single.json.gz",
        "tracelens/traces/bert-small_MI300X_single.json.gz",
        "param_et/linear_kineto.json.gz",
        pytest.param("hta_traces/ddp_2xV100_rank1.json.gz", marks=pytest.mark.slow),
        pytest.param("hta_traces/recsys_8xA100_rank3.json.gz", marks=pytest.mark.slow),
    ],
)
def test_advice_and_whatif_agree_on_recorded_jobs(data, pattern):
    assert assert_as_whatif(sorted(data.glob(pattern))).advice


@pytest.mark.data
def test_a_straggler_that_saves_little_is_not_what_to_do_first(data):
    paths = sorted((data / "param_dlrm_8xV100/kineto").glob("rank*.json.gz"))
    (answer,) = what_if_jobs([read(path) for path in paths], ["no-straggler"])
    assert answer.outcomes[0].gain < 0.05
    assert not any("rank 7 is late" in each.title for each in analyze(paths).advice[:1])


@pytest.mark.data
@pytest.mark.slow
def test_communication_that_costs_the_step_nothing_is_no_advice(data):
    analysis = analyze(data / "hta_traces/ddp_2xV100_rank1.json.gz")
    assert not any("communication" in each.title.lower() for each in analysis.advice)


def test_gaps_between_the_kernels_of_a_graph_are_what_to_close(tmp_path):
    (first, *_) = analyze(MADE_UP["graph"](tmp_path)).advice
    assert first.change == "no-gaps"
    assert "queued kernels" in first.title
    assert first.share == pytest.approx(0.63, abs=0.03)


@pytest.mark.parametrize("name", ["tokenize", "enumerate(DataLoader)#_Iter.__next__"])
def test_preprocessing_is_told_from_launching(tmp_path, name):
    advice = analyze(one(tmp_path, preprocessing_steps(name=name))).advice
    assert advice[0].change == "no-input"
    assert "workers" in advice[0].how
    assert "preprocess" in advice[0].why
    assert advice[0].title.startswith("Load data" if "Loader" in name else "Prepare the input")
    assert not any("torch.compile" in each.how for each in advice)


def test_host_work_in_the_middle_of_a_step_is_no_matter_of_launches(tmp_path):
    events, period = [], 12_000.0
    for step in range(4):
        zero, number = step * period, 100 * step
        events += [mark(step, zero, period - 1), event("rollout", "cpu_op", zero + 80, 9_000, 1)]
        for n, called in enumerate((2, 9_100, 9_110, 9_120)):
            events += [launch(zero + called, number + n)]
            events += [kernel(zero + called + 5, 50 if not n else 9, f"k{n}", 7, number + n)]
        events += [event("cudaDeviceSynchronize", "cuda_runtime", zero + 9_140, 20, 1)]
    (first, *_) = bounds_of(one(tmp_path, events)).advice
    host = [e for e in bounds_of(one(tmp_path, events)).advice if e.change == "no-launching"]
    assert first.gain > 0
    assert host[0].title == "Take host work out of the step"
    assert "rollout" in host[0].why
    assert "torch.compile" not in host[0].how


def test_a_wait_costs_what_the_replay_without_it_saves(tmp_path):
    paths = MADE_UP["waits"](tmp_path)
    (found,) = (each for each in analyze(paths).advice if each.change == "no-sync")
    idle = bounds_of(paths).ranks[0].step_idle
    waited = sum(each.seconds for each in idle if "synchronising" in each.what)
    assert found.gain > 2 * waited + 10e-6  # what comes late afterwards is more than the wait


def test_a_gpu_that_is_always_busy_is_told_what_with(tmp_path):
    (only,) = analyze(MADE_UP["busy"](tmp_path)).advice
    assert only.title == "Spend less time in matrix products"
    assert "matrix products 75 %" in only.why
    assert "elementwise 25 %" in only.why
    assert only.basis == BOUND


def test_a_rank_whose_kernels_are_slow_is_worth_what_the_step_saves_without_it(tmp_path):
    (first, *_) = analyze(MADE_UP["straggler"](tmp_path)).advice
    assert "rank 1 is late" in first.title
    assert first.share == pytest.approx((900 - 260) / 1060, abs=0.03)


def test_a_replay_that_is_far_off_leaves_bounds_that_say_so(tmp_path):
    analysis = analyze(one(tmp_path, uneven_steps()))
    assert analysis.advice
    assert {each.basis for each in analysis.advice} == {BOUND}
    assert all("the replay is off by" in each.doubt for each in analysis.advice)


def test_a_trace_without_launches_has_bounds_that_say_so(tmp_path):
    events = [kernel(100 * step + 5 * n, 3, f"k{n % 9}") for step in range(6) for n in range(10)]
    advice = analyze(one(tmp_path, events)).advice
    assert any(each.title == "Record the host too" for each in advice)
    assert all(each.basis == BOUND for each in advice)


def test_clocks_that_are_far_apart_leave_waiting_and_moving_unknown(tmp_path):
    paths = several(tmp_path, lambda rank: apart(rank, SHIFTS), 2)
    analysis = bounds_of(paths)
    for rank in analysis.ranks:
        assert (rank.total.waiting, rank.total.moving) == (None, None)
        assert {use.moving for use in rank.collectives} == {None}
        assert rank.basis == "unknown"
    assert not analysis.stragglers
    assert any("the split of waiting and moving is unknown" in note for note in analysis.notes)
    rows = what_if_jobs([read(path) for path in paths], ["no-communication"], anyway=True)
    assert len(rows) == 2  # each rank by itself: nothing joins them


def test_clocks_that_agree_measure_both(tmp_path):
    paths = several(tmp_path, lambda rank: apart(rank, ((0,) * 4, (3, 0, 2, 0))), 2)
    assert {rank.basis for rank in bounds_of(paths).ranks} == {"measured"}


def test_layers_of_a_server_are_no_steps(tmp_path):
    rank = bounds_of(one(tmp_path, layered_steps(steps=6, layers=32))).ranks[0]
    assert rank.steps_found
    assert len(rank.steps) == 5
    assert rank.step_time == pytest.approx((324 * 10 + 200) * 1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "execute_context_0(0)_generation_8(8)",
        "context_1(512)_generation_3(3)",
        "[Executor] _forward_step 7: 1 ctx reqs, 3 gen reqs",
    ],
)
def test_a_pass_that_a_server_marks_is_a_step(tmp_path, name):
    """Passes of unequal lengths repeat layer by layer only; the marks tell them apart."""
    events, now, number = [], 0.0, 0
    for layers in (32, 8, 32, 24, 32, 8):
        begin = now
        for n in range(10 * layers):
            number += 1
            events += [launch(now, number, dur=2), kernel(now + 4, 9, f"layer_{n % 10}", 7, number)]
            now += 10
        events.append(event(name, "user_annotation", begin, now - begin, 1))
        now += 100
    rank = bounds_of(one(tmp_path, events)).ranks[0]
    assert [step.split.num_gpu_events for step in rank.steps] == [320, 80, 320, 240, 320, 80]
    assert not rank.steps_found
    assert any("forward pass" in note for note in rank.notes)


def many_small(steps=4, count=40, **more):
    """Steps that end in many small all-reduces, which nothing overlaps; the host waits for them."""
    events, number, period = [], 0, 1100.0 + 41 * count
    for step in range(steps):
        zero = period * step
        events += [mark(step, zero, period - 1), launch(zero + 1, number)]
        events.append(kernel(zero + 10, 1000, correlation=number))
        events.append(event("cudaStreamWaitEvent", "cuda_runtime", zero + 3, 0, 1))
        for n in range(count):
            number += 1
            events.append(launch(zero + 4 + 2 * n, number))
            events.append(all_reduce(zero + 1011 + 41 * n, 40, number, **more))
        events.append(event("cudaStreamWaitEvent", "cuda_runtime", zero + 5 + 2 * count, 0, 1))
        number += 1
        events += back(zero + 6 + 2 * count, 2, number, zero + 1020 + 41 * count)
        number += 1
    return events


def test_many_small_collectives_want_larger_buckets_not_smaller_pieces(tmp_path):
    analysis = analyze(one(tmp_path, many_small(nelems=1024)))
    merge = next(each for each in analysis.advice if each.title.startswith("Merge"))
    assert merge.title == "Merge 40 small collectives into fewer, larger ones"
    assert (merge.basis, merge.change) == (REPLAYED, "buckets*40")
    assert merge.gain > 0
    assert "40 all_reduce of 4 KiB" in merge.why
    assert "bucket_cap_mb" in merge.how
    assert not any("smaller pieces" in each.how for each in analysis.advice)


def test_collectives_of_unknown_size_are_a_bound_that_says_what_to_record(tmp_path):
    events = many_small()
    for each in events:
        for key in ("In msg nelems", "Out msg nelems", "dtype"):
            each["args"].pop(key, None)
    paths = one(tmp_path, events)
    merge = next(each for each in bounds_of(paths).advice if each.title.startswith("Merge"))
    assert merge.basis == BOUND
    assert "record_shapes" in merge.doubt
    assert "bucket_cap_mb" in analyze(paths).advice[0].how


def test_few_large_collectives_are_not_merged(tmp_path):
    advice = analyze(one(tmp_path, exposed_steps())).advice
    assert advice
    assert not any(each.title.startswith("Merge") for each in advice)


def test_no_step_begins_inside_a_graph(tmp_path):
    """One call launches 32 equal layers: the layers repeat, the steps are the calls."""
    events = []
    for step in range(6):
        zero = 4000.0 * step
        call = event("cudaGraphLaunch", "cuda_runtime", zero, 9, 1, correlation=step)
        events.append(call)
        events += [kernel(zero + 20 + 10 * n, 9, f"layer_{n % 10}", 7, step) for n in range(320)]
    rank = bounds_of(one(tmp_path, events)).ranks[0]
    assert {round(step.seconds * 1e6) for step in rank.steps} == {4000}
    assert {step.split.num_gpu_events for step in rank.steps} == {320}
