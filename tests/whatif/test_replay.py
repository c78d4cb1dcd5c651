"""Replay: jobs whose times are known by arithmetic come out as they went in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.trace.events import event, kernel, text, written
from tests.whatif.player import Do, play, recorded
from weft.errors import FormatError
from weft.trace.kineto import read_kineto
from weft.whatif import errors_of, replay
from weft.whatif.calls import calls_of
from weft.whatif.occupancy import waves
from weft.whatif.order import order_of
from weft.whatif.recorded import seconds_like

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
    """Give a step that begins with a wait for 600 us of work nobody saw launched."""
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
