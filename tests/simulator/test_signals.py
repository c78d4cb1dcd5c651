"""Engines, signals, those who look and those who ask: microseconds worked out by hand.

The paper machine: control 1, doorbell 2, fetch 3, start 4, sync 5, a kernel launched by the host
6, a release 7 microseconds; a launch 1, a signal half of one. 10 MB take a millisecond.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.paper import (
    DEVICE,
    DMA,
    GB,
    MB,
    US,
    bare,
    close,
    hear,
    lasted,
    launch,
    machine,
    made,
    matmul,
    move,
    queue,
    spans,
    tell,
    without_costs,
)
from weft.hardware import Level, Platform
from weft.schedule import (
    CommandKind,
    Copy,
    Cost,
    Flag,
    Kernel,
    Queue,
    Reduce,
    Slice,
    Submit,
)
from weft.simulator import simulate

FREE = without_costs()


def with_dma(**changed):
    return replace(DEVICE, dma=replace(DMA, **changed))


def opaque(seconds):
    return Kernel("k", Cost(seconds=seconds))


@pytest.mark.parametrize(
    ("nbytes", "starts"), [(0, 1), (1, 1), (10 * MB, 1), (10 * MB + 1, 2), (20 * MB, 2)]
)
def test_a_copy_of_whole_packets_starts_as_often_and_the_smallest_once(nbytes, starts):
    found = spans(made(2, {0: (queue("copy0", move(0, 1, nbytes)),)}), machine())
    assert found[0, "copy0", 0][1] == close(starts * 4 * US + nbytes / (10 * GB))


def test_a_signal_that_no_copy_of_its_engine_precedes_has_nothing_to_wait_for():
    device = with_dma(drain=6 * US)
    alone = made(2, {0: (queue("copy0", tell(0), move(0, 1, 1000)),)})
    found = spans(alone, machine(device=device))
    assert found[0, "copy0", 0] == (0, 0)
    together = made(2, {0: (queue("copy0", move(0, 1, 1000)), queue("copy1", tell(0)))})
    found = spans(together, machine(device=device))
    assert found[0, "copy1", 0] == (0, 0)
    elsewhere = made(2, {0: (queue("nic0", move(0, 1, 1000), tell(0)), queue("copy1", tell(0)))})
    found = spans(elsewhere, machine(device=device))
    assert lasted(found, 0, "nic0", 1) == 0


def test_only_the_host_looks_and_only_at_engines():
    """All flags are up when the looking begins; what engines raised takes 2 us a look."""
    device = replace(with_dma(observe=2 * US), signal=0.0)
    queues = (
        queue("copy0", move(0, 1, 1000), tell(0, 0), tell(1, 1), tell(0, 2)),
        queue("stream0", tell(0, 1)),
        queue("stream1", matmul(500 * US), hear(2)),
        queue("host", hear(4), hear(0), hear(1), hear(0)),
    )
    late = (queue("stream0", matmul(500 * US), tell(0, 4)),)
    found = spans(made(2, {0: queues, 1: late}), machine(device=device))
    looks = [lasted(found, 0, "host", number) for number in (1, 2, 3)]
    assert looks == close([2 * US, 0, 2 * US])  # flag 1 of this rank was raised by a stream
    assert lasted(found, 0, "stream1", 1) == 0


def latency_of(src, dst, *, device=DEVICE, latency):
    """From a signal of one queue of rank 0 or 1 to the end of a wait for it on another."""
    (from_rank, from_queue), (to_rank, to_queue) = src, dst
    ranks: dict[int, tuple[Queue, ...]] = {0: (), 1: ()}
    ranks[from_rank] += (queue(from_queue, tell(to_rank, 1)),)
    ranks[to_rank] += (queue(to_queue, hear(1)),)
    network = Platform("p", device=device, levels=(Level("switch", 2, 10 * GB, latency),))
    return spans(made(2, ranks), network)[to_rank, to_queue, 0][1]


HOP = 20 * US


@pytest.mark.parametrize(
    ("src", "dst", "seconds"),
    [
        ((0, "stream0"), (0, "stream1"), 0.0),  # inside the device
        ((0, "stream0"), (1, "stream1"), HOP + 0.5 * US),
        ((0, "nic0"), (1, "stream1"), HOP + 0.5 * US),
        ((0, "host"), (1, "host"), 0.0),  # threads of one node
        ((0, "host"), (0, "stream0"), 7 * US),
        ((0, "host"), (1, "stream0"), 7 * US),
        ((0, "stream0"), (0, "host"), 5 * US),
        ((0, "copy0"), (1, "host"), 5 * US),
    ],
)
def test_a_signal_takes_what_lies_between_who_gives_it_and_who_waits(src, dst, seconds):
    assert latency_of(src, dst, latency=HOP) == close(seconds)


def test_without_engines_a_signal_to_the_host_comes_over_the_network():
    device = replace(DEVICE, dma=None)
    assert latency_of((0, "stream0"), (1, "host"), device=device, latency=HOP) == close(20.5 * US)


def test_a_signal_that_releases_what_is_held_takes_a_release_though_a_host_waits_too():
    hold = Flag(0, 1)
    ranks = {
        0: (
            queue("host", Submit(0, "copy0", 1, hold), tell(0, 1), hear(1)),
            queue("copy0", move(0, 1, 1000)),
        )
    }
    found = spans(made(2, ranks), machine())
    assert found[0, "copy0", 0][0] == close(7 * US)


def test_flags_of_other_ranks_and_other_numbers_are_others():
    """Of two ranks with eight flags each, only the last of rank 0 is raised at once."""
    ranks = {
        0: (queue("stream0", hear(7)), queue("stream1", tell(0, 7)), queue("stream2", hear(6))),
        1: (
            queue("stream0", hear(0)),
            queue("stream1", matmul(100 * US), tell(1, 0), tell(0, 6)),
        ),
    }
    found = spans(made(2, ranks), machine(device=FREE))
    assert found[0, "stream0", 0][1] == 0
    assert found[0, "stream2", 0][1] == close(100 * US)
    assert found[1, "stream0", 0][1] == close(100 * US)


@pytest.mark.parametrize(("count", "seconds"), [(1, 0), (2, 10), (3, 20)])
def test_a_wait_holds_for_all_its_signals(count, seconds):
    sends = queue("stream1", tell(0), opaque(10 * US), tell(0), opaque(10 * US), tell(0))
    ranks = {0: (queue("stream0", hear(count=count)), sends)}
    found = spans(made(1, ranks), machine(1, device=FREE))
    assert found[0, "stream0", 0][1] == close(seconds * US)


def x(rank):
    return Slice(rank, "x", 0, 0)


def y(rank):
    return Slice(rank, "y", 0, 0)


TREE = bare(Level("switch", 2, 10 * GB, 1 * US), Level("switch", 2, 10 * GB, 10 * US))


@pytest.mark.parametrize(
    ("command", "there_and_back"),
    [
        (Copy(x(0), y(1)), 0),  # it is written
        (Copy(x(1), y(0)), 2 * 1 * US),
        (Copy(x(2), y(0)), 2 * 10 * US),
        (Copy(x(3), y(0)), 2 * 11 * US),
        (Copy(x(3), y(3)), 2 * 11 * US),  # the rank that runs it asks, not the one it is for
        (Reduce((x(0), x(1), x(3), x(2)), y(0)), 2 * 11 * US),  # all at once
        (Reduce((x(0), x(0)), y(3)), 0),
    ],
)
def test_what_is_read_elsewhere_is_asked_for_once_and_waited_for(command, there_and_back):
    found = spans(made(4, {0: (queue("nic0", command),)}), TREE)
    assert lasted(found, 0, "nic0", 0) == close(there_and_back)


def test_commands_that_only_order_others_take_no_time_by_themselves():
    work = made(1, {0: (queue("stream0", launch(units=1), tell(0)), queue("stream1", hear()))})
    timeline = simulate(work, machine(1, device=FREE))
    assert timeline.seconds == 0
    assert set(timeline.kind.tolist()) == {CommandKind.LAUNCH, CommandKind.SIGNAL, CommandKind.WAIT}


def test_a_host_tells_one_of_another_node_over_the_links_between_them():
    levels = Level("switch", 2, GB, 1 * US), Level("switch", 2, GB, 30 * US)
    nodes = Platform("paper", device=DEVICE, levels=levels, node_levels=1)
    for rank, seconds in ((1, 0.0), (2, 30 * US)):
        schedule = made(4, {0: (queue("host", tell(rank)),), rank: (queue("host", hear()),)})
        assert spans(schedule, nodes)[rank, "host", 0][1] == close(seconds)
