"""Replay: jobs whose times are known by arithmetic come out as they went in."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import weft
from tests.trace.events import event, kernel, launch, mark, text, written
from tests.whatif.jobs import graph_steps, uneven_steps
from tests.whatif.player import Do, play, recorded
from weft.errors import FormatError, ReplayError
from weft.hardware import platform
from weft.trace import read
from weft.trace.formats.kineto import read_kineto
from weft.trace.recorded.calls import calls_of
from weft.trace.recorded.occupancy import waves
from weft.trace.recorded.order import order_of
from weft.trace.recorded.overheads import overheads_of
from weft.trace.recorded.recorded_step import seconds_like
from weft.whatif import Replay, errors_of, predict_trace, replay, what_if
from weft.whatif.planned import plan_recorded
from weft.whatif.replay import MOST_ERROR, doubt, replay_error

HOST_BOUND = [Do(seconds=3.0, gap=20.0) for _ in range(6)]
DEVICE_BOUND = [Do(seconds=50.0, gap=1.0) for _ in range(6)]
BLOCKING = [Do(seconds=40.0), Do(stream=9, after=(0,)), Do(stream=9, back=True), Do(gap=9.0)]
COMMUNICATING = [
    Do(seconds=30.0),
    Do(stream=20, seconds=80.0, after=(0,), nccl=True),
    Do(seconds=20.0),
    Do(seconds=10.0, after=(1,)),
    Do(back=True),
]


@pytest.mark.parametrize("step", [HOST_BOUND, BLOCKING, COMMUNICATING])
def test_a_job_takes_as_long_as_it_took(tmp_path, step):
    trace, periods = recorded(tmp_path, [step] * 4)
    found = replay(trace)
    assert [each.simulated for each in found[1:3]] == pytest.approx(periods[1:3], rel=1e-3)
    assert all(each.held_out for each in found)
    assert [each.name for each in found] == [mark.name for mark in trace.marks]


def test_a_job_that_runs_ahead_of_its_device_has_the_period_of_the_device(tmp_path):
    trace, _ = recorded(tmp_path, [DEVICE_BOUND] * 4)
    found = replay(trace)
    assert all(each.by_device for each in found)
    assert [each.simulated for each in found] == pytest.approx([6 * 51e-6] * 4, rel=1e-3)
    assert errors_of(found)[1] < 1e-3


def test_a_kernel_takes_as_long_as_in_the_step_that_is_replayed(tmp_path):
    slow = [replace(BLOCKING[0], seconds=140.0), *BLOCKING[1:]]
    trace, periods = recorded(tmp_path, [BLOCKING, BLOCKING, slow, BLOCKING])
    assert replay(trace)[2].simulated == pytest.approx(periods[2], rel=1e-3)


def test_no_gap_of_the_replayed_step_is_used(tmp_path):
    late = [replace(do, gap=do.gap * 7) for do in HOST_BOUND]
    trace, periods = recorded(tmp_path, [HOST_BOUND, HOST_BOUND, late, HOST_BOUND])
    found = replay(trace)
    assert found[2].simulated == pytest.approx(periods[1], rel=1e-3)
    assert found[2].error < -0.5
    assert found[1].simulated > 1.5 * periods[1]  # what the others took is


def test_one_step_is_replayed_from_itself_with_what_was_left_to_do(tmp_path):
    events, _ = _one_step_with_backlog()
    path = tmp_path / "t.json"
    path.write_bytes(text(events))
    (found,) = replay(read_kineto(path))
    assert not found.held_out
    assert found.simulated == pytest.approx(1000e-6, rel=0.01)


def _one_step_with_backlog():
    """Return a step that begins with a wait for 600 us of work nobody saw launched."""
    wait = event("cudaDeviceSynchronize", "cuda_runtime", 10.0, 600.0, 1)
    old = event("k", "kernel", -100.0, 705.0, 7, stream=7, device=0, correlation=1)
    call = event("cudaLaunchKernel", "cuda_runtime", 700.0, 5.0, 1, correlation=2)
    new = event("k", "kernel", 706.0, 20.0, 7, stream=7, device=0, correlation=2)
    step = event("ProfilerStep#1", "user_annotation", 0.0, 1000.0, 1)
    return [step, wait, old, call, new], 1000.0


def test_a_trace_without_launches_says_what_to_record(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(text([event("aten::add", "cpu_op", 0.0, 5.0, 1)]))
    with pytest.raises(FormatError, match="nothing to replay") as caught:
        replay(read_kineto(path))
    assert "ProfilerActivity.CUDA" in str(caught.value.hint)


def test_what_waits_is_found_by_what_was_over_in_every_step(tmp_path):
    trace, _ = recorded(tmp_path, [COMMUNICATING] * 3)
    steps = calls_of(trace)
    launches = steps[0].launches.tolist()
    order = order_of(steps)
    assert order.after[launches[1]] == (launches[0],)
    assert launches[1] in order.after[launches[3]]
    assert order.host_waits[launches[4]] == (launches[4],)


def test_steps_of_other_shape_lend_durations_by_name(tmp_path):
    trace, _ = recorded(tmp_path, [HOST_BOUND, HOST_BOUND[:4]])
    long, short = calls_of(trace)
    assert len(seconds_like(long, short)) == len(long)
    assert np.allclose(seconds_like(short, long), short.seconds)


def test_a_kernel_behind_one_that_fills_the_device_waits_for_its_last_wave(tmp_path):
    """The host waits for a small kernel of a side stream, which waits for a large one."""
    waves = 108 * 2 * 10  # workgroups of 1024 threads: ten waves on 108 units
    step = [
        Do(seconds=500.0, grid=waves),
        Do(stream=9, seconds=4.0, op="small"),
        Do(stream=9, back=True),
    ]
    trace, periods = recorded(tmp_path, [step] * 3)
    # The player does not know about waves, so the replay is later by them.
    assert replay(trace)[1].simulated > periods[1] + 300e-6


@pytest.mark.parametrize("odd", [-5, 10**400, 2**60, "x", None])
@pytest.mark.parametrize("key", ["grid", "block", "registers per thread", "shared memory"])
def test_a_launch_that_cannot_be_fills_nothing(tmp_path, key, odd):
    about = {"grid": [8, 1, 1], "block": [64, 1, 1]}
    about[key] = [odd, 1, 1] if key in about else odd
    trace = read_kineto(written(tmp_path / "a.json", [kernel(0, 5, **about)]))
    assert 0 <= waves(trace)[0] < np.inf


def test_a_device_whose_clock_stands_still_leaves_the_periods_of_its_host(tmp_path):
    events, begins = play([HOST_BOUND] * 3)
    late = [each | {"ts": 1e5} if each["cat"] == "kernel" else each for each in events]
    found = replay(read_kineto(written(tmp_path / "a.json", late)))
    assert found[0].measured == pytest.approx((begins[1] - begins[0]) * 1e-6)
    assert not found[0].by_device


@st.composite
def programs(draw):
    """Draw steps on three streams that wait for each other, with copies that block."""
    found = []
    for number in range(draw(st.integers(2, 12))):
        after = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        found.append(
            Do(
                stream=draw(st.sampled_from([7, 9, 20])),
                seconds=draw(st.sampled_from([2.0, 60.0, 200.0])),
                gap=draw(st.sampled_from([1.0, 60.0])),
                after=tuple(sorted(after)),
                back=draw(st.integers(0, 4)) == 0,
            )
        )
    return [*found, Do(stream=7, back=True), Do(stream=9, back=True), Do(stream=20, back=True)]


HELD_UP = [  # the third is held up by another stream, which is no gap of its own
    Do(stream=9, seconds=60.0, gap=1.0),
    Do(stream=7, seconds=2.0, gap=1.0, after=(0,)),
    Do(stream=9, seconds=2.0, gap=1.0, after=(0, 1)),
    *(Do(stream=stream, back=True) for stream in (7, 9, 20)),
]


@example(HELD_UP)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs())
def test_any_job_that_joins_its_streams_is_replayed(tmp_path, step):
    trace, periods = recorded(tmp_path, [step] * 3)
    found = replay(trace)
    assert found[1].simulated == pytest.approx(periods[1], rel=0.05)


@pytest.mark.parametrize(("busy", "gap"), [(20.0, 36.0), (100.0, 180.0), (30.0, 2000.0)])
def test_idle_time_of_a_stream_that_nothing_explains_is_kept(tmp_path, busy, gap):
    """Kernels of a graph stand apart although all of them are queued."""
    events = graph_steps(busy=busy, gap=gap)
    found = replay(read_kineto(written(tmp_path / "a.json", events)))
    assert found[1].measured == pytest.approx((40 * (busy + gap) + 60) * 1e-6)
    assert errors_of(found)[1] < 0.01


def test_a_device_that_is_full_explains_idle_time(tmp_path):
    """A small kernel waits for the last wave of a large one: that is modelled, not a pause."""
    step = [Do(seconds=900.0, grid=108 * 2 * 10), Do(stream=9, seconds=4.0), Do(back=True)]
    trace, _ = recorded(tmp_path, [step] * 3)
    calls = calls_of(trace)
    assert not overheads_of(calls, order_of(calls)).pauses.any()


def test_a_host_that_runs_ahead_is_measured_by_its_device_even_if_it_waits_once(tmp_path):
    """The last step ends with a wait for the device, as the profiler does when it stops."""
    steps = [DEVICE_BOUND] * 5 + [[*DEVICE_BOUND, Do(back=True)]]
    trace, _ = recorded(tmp_path, steps)
    found = replay(trace)
    assert [each.by_device for each in found[:5]] == [True] * 5
    assert [each.measured for each in found[:4]] == pytest.approx([6 * 51e-6] * 4, rel=0.01)
    assert abs(replay_error(found)) < 0.05


@pytest.mark.data
def test_the_period_of_a_job_that_its_gpu_bounds_is_that_of_its_gpu(data):
    found = replay(read(data / "tracelens/traces/resnet_ddp_8xMI300X_rank0.json.gz"))
    assert np.mean([each.measured for each in found]) == pytest.approx(19.0e-3, rel=0.02)


@pytest.mark.data
def test_a_trace_that_lacks_gpu_work_keeps_the_time_it_took(data, tmp_path):
    """Streams of NCCL are left out: what waited for them stands idle behind queued work."""
    with gzip.open(data / "tracelens/traces/resnet_ddp_8xMI300X_rank0.json.gz", "rt") as file:
        whole = json.load(file)
    kept = [e for e in whole["traceEvents"] if "nccl" not in str(e.get("name")).lower()]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(whole | {"traceEvents": kept}))
    assert abs(replay_error(replay(read(path)))) < 0.1


def test_uneven_steps_are_headed_by_their_mean(tmp_path):
    long = [*HOST_BOUND, *[Do(seconds=3.0, gap=20.0, op=f"more{n}") for n in range(12)]]
    trace, periods = recorded(tmp_path, [HOST_BOUND, HOST_BOUND, long] * 3)
    answer = what_if(trace, ["no-host"])
    assert answer.measured_step == pytest.approx(np.mean(periods), rel=1e-3)
    assert answer.replayed_step == pytest.approx(np.mean(periods), rel=0.02)
    (outcome,) = answer.outcomes
    assert outcome.step == pytest.approx(answer.replayed_step * (1 - outcome.gain))
    assert errors_of(answer.replays)[1] < 0.02  # each from the steps that ask for the same


def test_steps_that_were_found_are_cut_where_the_host_launched_them(tmp_path):
    """Without marks, behind a device that is late: calls belong to the kernels they launched."""
    events, _ = play([DEVICE_BOUND * 2] * 6)
    unmarked = [each for each in events if not each["name"].startswith("ProfilerStep")]
    found = replay(read_kineto(written(tmp_path / "a.json", unmarked)))
    assert len(found) >= 4
    assert [each.measured for each in found[1:4]] == pytest.approx([12 * 51e-6] * 3, rel=0.01)
    assert errors_of(found)[0] < 0.02


def test_a_step_alone_is_no_shorter_than_its_device_needs(tmp_path):
    trace, _ = recorded(tmp_path, [[Do(seconds=200.0, gap=300.0) for _ in range(5)]])
    (outcome,) = what_if(trace, ["no-host"]).outcomes
    assert outcome.step >= 5 * 200e-6


def test_a_step_without_a_length_lasts_until_the_next(tmp_path):
    events = [mark(1, 0, 0), mark(2, 100, 50), launch(2, 1), kernel(10, 30, correlation=1)]
    (found,) = replay(read_kineto(written(tmp_path / "a.json", events)))
    assert found.measured == pytest.approx(100e-6)
    assert abs(found.error) < 0.05


def test_a_replay_that_is_far_off_is_refused(tmp_path):
    trace = read_kineto(written(tmp_path / "a.json", uneven_steps()))
    with pytest.raises(ReplayError, match=r"off by [-+]?\d+\.\d%") as caught:
        what_if(trace)
    assert "anyway" in caught.value.hint
    assert what_if(trace, anyway=True).doubt
    with pytest.raises(ReplayError):
        plan_recorded(trace)
    with pytest.raises(ReplayError):
        predict_trace(trace, platform("h100-8"))


def test_the_limit_lies_above_what_recorded_jobs_are_off_by():
    near = Replay("a", 1.0, 1.0 + MOST_ERROR - 0.01, held_out=True, by_device=False)
    far = Replay("b", 1.0, 1.0 - MOST_ERROR - 0.01, held_out=True, by_device=False)
    assert doubt([near]) == ""
    assert "-16.0%" in doubt([far])
    assert doubt([near, far, far])  # they cancel in sum, and the median step is still off


def test_the_documented_calls_take_files_and_traces(tmp_path):
    path = written(tmp_path / "rank0.json", graph_steps())
    assert weft.whatif.what_if(path).replayed_step == pytest.approx(
        weft.whatif.what_if(weft.trace.read(path)).replayed_step
    )
    assert weft.whatif.what_if(str(path), ["no-gaps"]).outcomes[0].gain > 0.5
    assert len(weft.whatif.what_if_jobs([path])) == 1
    assert weft.whatif.replay(path)


def test_marks_that_stand_apart_have_the_period_between_them(tmp_path):
    """The last of them has none: what the host does between two is not in its mark."""
    events = []
    for step in range(4):
        zero = 1000.0 * step
        events += [
            mark(step, zero, 100),
            launch(zero + 2, step),
            kernel(zero + 9, 30, "k", 7, step),
        ]
    answer = what_if(read_kineto(written(tmp_path / "a.json", events)))
    assert answer.measured_step == pytest.approx(1e-3)
    assert len(answer.replays) == 3
    assert errors_of(answer.replays)[1] < 0.01


def test_changes_are_made_to_the_step_whose_collectives_are_nearest_the_mean(tmp_path):
    """All steps take as long, but collectives of 10, 10, 200 and 400 us."""
    steps = []
    for communicate in (10.0, 10.0, 200.0, 400.0):
        rest = 500.0 - communicate
        steps.append([Do(stream=20, seconds=communicate, nccl=True), Do(seconds=rest, after=(0,)),
                      Do(back=True)])  # fmt: skip
    trace, _ = recorded(tmp_path, steps)
    answer = what_if(trace, ["no-communication"])
    # On the busiest stream steps begin ever later: their host, which waits, tells how long.
    assert answer.measured_step == pytest.approx(533e-6, rel=1e-3)
    assert answer.outcomes[0].gain == pytest.approx(200 / 533, abs=0.02)  # their mean is 155 us
