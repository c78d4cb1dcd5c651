"""Kernels that run again with other seconds, waves and priorities: as if they were priced so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.paper import DEVICE, close, hear, launch, machine, made, queue, tell
from weft.collectives import collective
from weft.errors import DeadlockError
from weft.schedule import SELF, Cost, Kernel, Kind, Submit
from weft.simulator import Rerun, simulate

MS = 1e-3
DEV = replace(DEVICE, launch=10e-6, host_launch=1e-9, signal=0.0)
ALL = (Kind.KERNEL, Kind.LAUNCH, Kind.SIGNAL, Kind.WAIT)


def kernel(seconds, waves=1.0):
    return Kernel("k", Cost(seconds=seconds, tiles=round(waves * DEV.units)))


def two_ranks():
    """Rank 1 waits for a kernel of rank 0; both have two streams."""
    return made(
        2,
        {
            0: (queue("stream0", kernel(1 * MS), tell(1)), queue("stream1", kernel(2 * MS))),
            1: (queue("stream0", hear(), kernel(3 * MS)), queue("stream1", kernel(4 * MS))),
        },
    )


def again(schedule):
    return Rerun(schedule, machine(schedule.num_ranks, device=DEV))


def test_rows_are_those_of_the_kinds_in_the_queue_of_the_rank():
    found = again(two_ranks())
    where = found.table.where

    def places(rank, name, kinds):
        return [where(int(row)) for row in found.rows(rank, name, kinds)]

    assert places(0, "stream0", ALL) == ["stream0@0 #0 Kernel", "stream0@0 #1 Signal"]
    assert places(0, "stream0", (Kind.KERNEL,)) == ["stream0@0 #0 Kernel"]
    assert places(1, "stream0", (Kind.KERNEL, Kind.WAIT)) == [
        "stream0@1 #0 Wait",
        "stream0@1 #1 Kernel",
    ]
    assert places(1, "stream1", ALL) == ["stream1@1 #0 Kernel"]
    assert places(0, "stream7", ALL) == []
    assert places(0, "stream1", (Kind.WAIT,)) == []


def test_every_rank_is_there_even_where_all_do_the_same():
    schedule = collective("all_to_all", "direct", num_ranks=4, nbytes=4000)
    assert len(simulate(schedule, machine(4, device=DEV)).ranks) == 1
    assert set(again(schedule).table.ranks.tolist()) == {0, 1, 2, 3}


def test_a_kernel_takes_its_new_seconds_after_its_launch_and_others_keep_theirs():
    found = again(two_ranks())
    rows = found.rows(0, "stream0", (Kind.KERNEL,))
    start, end = found.times(rows, np.array([7 * MS]), np.array([1.0]))
    (waits, behind) = found.rows(1, "stream0", (Kind.WAIT, Kind.KERNEL))
    (beside,) = found.rows(1, "stream1", (Kind.KERNEL,))
    assert end[rows[0]] - start[rows[0]] == close(7 * MS + DEV.launch)
    assert end[waits] == close(7 * MS + DEV.launch)
    assert end[behind] == close(7 * MS + 3 * MS + 2 * DEV.launch)
    assert end[beside] == close(4 * MS + DEV.launch)


def test_nothing_changed_is_what_simulate_says():
    found = again(two_ranks())
    nothing = found.rows(0, "stream9", ALL), np.empty(0), np.empty(0)
    timeline = found.timeline(*found.times(*nothing))
    want = simulate(two_ranks(), machine(2, device=DEV), collapse=False)
    assert timeline.seconds == close(want.seconds)
    assert timeline.start == pytest.approx(want.start)
    assert timeline.end == pytest.approx(want.end)
    assert (timeline.basis, timeline.platform) == ("predicted", "paper")


def test_time_zero_is_the_start_of_the_schedule_not_of_its_first_kernel():
    late = made(
        1, {0: (queue("host", Submit(SELF, "stream1", 1)), queue("stream1", kernel(1 * MS)))}
    )
    slow = machine(1, device=replace(DEV, host_launch=5 * MS))
    found = Rerun(late, slow)
    rows = found.rows(0, "stream1", (Kind.KERNEL,))
    timeline = found.timeline(*found.times(rows, np.array([2 * MS]), np.array([1.0])))
    assert timeline.seconds == close(5 * MS + DEV.launch + 2 * MS)


def test_one_question_leaves_nothing_behind_for_the_next():
    found = again(two_ranks())
    rows = found.rows(0, "stream1", (Kind.KERNEL,))
    plain = found.times(rows, np.array([2 * MS]), np.array([1.0]))
    found.times(rows, np.array([9 * MS]), np.array([4.0]), first=[(0, "stream1")])
    same = found.times(rows, np.array([2 * MS]), np.array([1.0]))
    assert all(np.array_equal(*both) for both in zip(plain, same, strict=True))


def streams(*commands, priorities=(0, 0, 0)):
    """Kernels of several streams, launched in this order."""
    submits = [Submit(SELF, f"stream{i}", 1) for i in range(len(commands))]
    queues = [
        queue(f"stream{i}", command, priority=priority)
        for i, (command, priority) in enumerate(zip(commands, priorities, strict=False))
    ]
    return made(2, {0: (queue("host", *submits), *queues)})


def start_of_second(found, seconds, waves, first=()):
    rows = found.rows(0, "stream0", (Kind.KERNEL,))
    start, _ = found.times(rows, np.array([seconds]), np.array([waves]), first)
    return start[found.rows(0, "stream1", (Kind.KERNEL, Kind.LAUNCH))[0]]


@settings(max_examples=25, derandomize=True)
@given(seconds=st.floats(1e-4, 1e-2), waves=st.floats(1.01, 20))
def test_who_comes_behind_starts_with_the_last_wave(seconds, waves):
    found = again(streams(kernel(1 * MS), kernel(1 * MS)))
    want = DEV.launch + seconds * (1 - 1 / waves)
    assert start_of_second(found, seconds, waves) == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize("priced", [1.0, 3.0])
def test_it_does_not_matter_whether_kernels_were_priced_with_waves(priced):
    """A kernel elsewhere that has waves gives the schedule a column that others do without."""
    found = again(streams(kernel(1 * MS), kernel(1 * MS), kernel(1 * MS, priced)))
    assert start_of_second(found, 4 * MS, 4.0) == pytest.approx(3 * MS + DEV.launch, rel=1e-3)
    assert start_of_second(found, 4 * MS, 1.0) < 0.01 * MS


def test_a_launch_waits_behind_a_kernel_like_a_kernel():
    found = again(streams(kernel(1 * MS), launch((tell(1),), units=1)))
    assert start_of_second(found, 4 * MS, 4.0) >= 3 * MS


def test_what_runs_in_lanes_was_dispatched_with_its_launch():
    """The launch comes first; the kernels in its lanes start while another stream has waves."""
    inside = launch((hear(1), kernel(1 * MS)), (hear(1), kernel(1 * MS)), units=1)
    first, second = streams(inside, kernel(1 * MS)).programs[0].queues[1:]
    host = queue("host", Submit(SELF, "stream0", 1), Submit(SELF, "stream1", 1), tell(0, 1))
    found = again(made(1, {0: (host, first, second)}))
    rows = found.rows(0, "stream1", (Kind.KERNEL,))
    start, _ = found.times(rows, np.array([40 * MS]), np.array([4.0]))
    lanes = found.rows(0, "stream0", (Kind.KERNEL,))
    assert (start[lanes] < 1 * MS).tolist() == [True, True]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_queues_named_first_go_first(rank):
    """Those of the rank that is named: the other's wait."""
    work = streams(kernel(1 * MS), kernel(1 * MS)).programs[0].queues
    found = again(made(2, dict.fromkeys(range(2), work)))
    rows = np.concatenate([found.rows(r, "stream0", (Kind.KERNEL,)) for r in range(2)])
    start, _ = found.times(rows, np.full(2, 4 * MS), np.full(2, 4.0), first=[(rank, "stream1")])
    for each in range(2):
        (second,) = found.rows(each, "stream1", (Kind.KERNEL,))
        assert (start[second] < 1 * MS) == (each == rank)


def test_being_named_first_adds_to_the_priority_that_a_queue_has():
    """Stream 0 has a higher priority already; named first, stream 1 is its equal and waits."""
    found = again(streams(kernel(1 * MS), kernel(1 * MS), priorities=(1, 0)))
    assert start_of_second(found, 4 * MS, 4.0, first=[(0, "stream1")]) >= 3 * MS
    found = again(streams(kernel(1 * MS), kernel(1 * MS), priorities=(0, 1)))
    assert start_of_second(found, 4 * MS, 4.0, first=[(0, "stream0")]) >= 3 * MS
    assert start_of_second(found, 4 * MS, 4.0) < 1 * MS


def test_a_schedule_that_cannot_end_is_refused():
    found = again(made(1, {0: (queue("stream0", kernel(1 * MS), hear()),)}))
    rows = found.rows(0, "stream0", (Kind.KERNEL,))
    with pytest.raises(DeadlockError, match="stream0@0 #1 Wait"):
        found.times(rows, np.array([1 * MS]), np.array([1.0]))


def test_a_kernel_that_was_priced_with_waves_may_run_again_without():
    """Who comes behind on another stream then starts with it, not with its last wave."""
    schedule = made(
        1, {0: (queue("stream0", kernel(1 * MS, 4.0)), queue("stream1", kernel(1 * MS)))}
    )
    found = again(schedule)
    rows = found.rows(0, "stream0", (Kind.KERNEL,))
    behind = found.rows(0, "stream1", (Kind.KERNEL,))
    late, _ = found.times(rows, np.array([1 * MS]), np.array([4.0]))
    soon, _ = found.times(rows, np.array([1 * MS]), np.array([1.0]))
    assert late[behind[0]] == close(DEV.launch + 0.75 * MS)
    assert soon[behind[0]] == close(0.0)
