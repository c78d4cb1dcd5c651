"""What the host hands over and what is launched: microseconds worked out by hand.

The paper machine: control 1, doorbell 2, fetch 3, start 4, sync 5, a kernel launched by the host
6, a release 7 microseconds; a launch 1, a signal half of one. 10 MB take a millisecond.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.paper import (
    DEVICE,
    MB,
    US,
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
from weft.schedule import (
    Cost,
    Flag,
    Kernel,
    Submit,
)
from weft.simulator import simulate

FREE = without_costs()
MOVING = 1000 * US


def opaque(seconds):
    return Kernel("k", Cost(seconds=seconds))


def test_each_submission_pays_for_the_copies_that_it_hands_over_itself():
    """Three submissions in turns to two engines; signals and waits are no copies."""
    one, two = move(0, 1, 1000), move(0, 1, 1000)
    engines = (
        queue("copy0", one, tell(0), one, two, one),
        queue("copy1", tell(0, 1), one, two, tell(0, 1)),
    )
    host = queue(
        "host",
        Submit(0, "copy0", 2),
        Submit(0, "copy1", 1),
        Submit(0, "copy0", 3),
        Submit(0, "copy1", 3),
    )
    found = spans(made(2, {0: (*engines, host)}), machine())
    copies = (1, 0, 3, 2)
    for number, count in enumerate(copies):
        assert lasted(found, 0, "host", number) == close((2 + count) * US)


def test_a_submission_of_more_than_there_is_counts_what_there_is():
    engines = (queue("copy0", move(0, 1, 1000)), queue("copy1", *[move(0, 1, 1000)] * 5))
    host = queue("host", Submit(0, "copy0", 100), Submit(0, "copy1", 5))
    found = spans(made(2, {0: (*engines, host)}), machine())
    assert lasted(found, 0, "host", 0) == close(3 * US)
    assert lasted(found, 0, "host", 1) == close(7 * US)


def test_hosts_pay_for_what_they_hand_over_to_their_own_and_to_other_ranks():
    def engine(count):
        return queue("copy0", *[move(0, 1, 1000)] * count)

    hosts = {
        0: (engine(1), queue("host", Submit(1, "copy0", 2), Submit(0, "copy0", 1))),
        1: (engine(3), queue("host", hear(), Submit(1, "copy0", 1))),
        2: (queue("stream0", matmul(500 * US), tell(1)),),
    }
    found = spans(made(3, hosts), machine(3))
    assert lasted(found, 0, "host", 0) == close(4 * US)
    assert lasted(found, 0, "host", 1) == close(3 * US)
    assert lasted(found, 1, "host", 1) == close(3 * US)


def test_what_stands_in_lanes_comes_with_its_launch():
    """Two launches of the host: kernels and copies inside are not handed over one by one."""
    inside = launch((matmul(1 * US), move(0, 1, 1000)), (matmul(1 * US),), units=1)
    stream = queue("stream0", inside, opaque(1 * US), tell(0, 5))
    found = spans(made(2, {0: (stream, queue("host", Submit(0, "stream0", 3)))}), machine())
    assert lasted(found, 0, "host", 0) == close(2 * 6 * US)


def test_only_engines_are_rung_and_fetch():
    """A stream that is fed starts as soon as the host has launched its kernel."""
    queues = (
        queue("stream0", opaque(1 * US)),
        queue("copy0", move(0, 1, 10 * MB)),
        queue("host", Submit(0, "stream0", 1), Submit(0, "copy0", 1)),
    )
    found = spans(made(2, {0: queues}), machine())
    assert found[0, "host", 0] == (0, close(6 * US))
    assert found[0, "stream0", 0] == (close(6 * US), close((6 + 1 + 1) * US))
    assert found[0, "host", 1] == (close(6 * US), close((6 + 3) * US))
    assert found[0, "copy0", 0][0] == close((6 + 3 + 3) * US)


def test_a_network_card_is_fed_for_nothing():
    queues = (queue("nic0", move(0, 1, 10 * MB)), queue("host", Submit(0, "nic0", 1)))
    assert simulate(made(2, {0: queues}), machine()).seconds == close(MOVING)


def test_prelaunched_work_is_paid_for_before_time_zero_and_nothing_else_is():
    hold = Flag(0, 3)
    queues = (
        queue("copy0", move(0, 1, 10 * MB)),
        queue("copy1", move(0, 1, 10 * MB), tell(0, 5)),
        queue("host", Submit(0, "copy0", 1, hold), Submit(0, "copy1", 2), tell(0, 3)),
    )
    found = spans(made(2, {0: queues}), machine())
    assert found[0, "host", 0] == (close(-3 * US), 0)
    assert found[0, "host", 1] == (0, close(3 * US))
    assert found[0, "copy0", 0][0] == close((3 + 7) * US)  # a store of the host releases it
    assert found[0, "copy1", 0][0] == close((3 + 3) * US)  # fetched


def test_hosts_of_several_ranks_each_end_their_prelaunching_at_zero():
    hold = [Flag(rank, 3) for rank in range(2)]
    ranks = {
        rank: (
            queue("copy0", *[move(rank, 1 - rank, 1000)] * (rank + 1)),
            queue("host", Submit(rank, "copy0", rank + 1, hold[rank]), tell(rank, 3)),
        )
        for rank in range(2)
    }
    found = spans(made(2, ranks), machine())
    assert found[0, "host", 0] == (close(-3 * US), 0)
    assert found[1, "host", 0] == (close(-4 * US), 0)


def test_a_kernel_of_the_host_itself_is_not_launched():
    found = spans(made(1, {0: (queue("host", opaque(1 * US)),)}), machine(1))
    assert lasted(found, 0, "host", 0) == close(1 * US)


def test_an_opaque_kernel_in_a_lane_takes_its_seconds_alone():
    work = queue("stream0", launch((opaque(2 * US), opaque(3 * US)), units=1))
    found = spans(made(1, {0: (work,)}), machine(1))
    assert found[0, "stream0", 1] == (close(1 * US), close(3 * US))
    assert found[0, "stream0", 2] == (close(3 * US), close(6 * US))


@pytest.mark.parametrize("tiles", [100, 101, 250])
def test_a_kernel_of_many_tiles_keeps_others_away_until_its_last_wave(tiles):
    """A kernel of ten milliseconds, a microsecond after its launch; one wave keeps nobody away."""
    first = Kernel("k", Cost(seconds=10_000 * US, tiles=tiles))
    second = (opaque(1 * US), launch(units=1))
    for command in second:
        queues = queue("stream0", first), queue("stream1", hear(), command)
        late = queue("nic0", move(0, 1, 10_000), tell(0))  # a microsecond later
        found = spans(made(2, {0: (*queues, late)}), machine())
        waves = tiles / 100
        waited = 10_000 * (1 - 1 / waves) + 1 if tiles > 100 else 1
        assert found[0, "stream1", 1][0] == close(waited * US)


def test_only_streams_wait_for_the_tiles_of_another():
    first = Kernel("k", Cost(seconds=10_000 * US, tiles=400))
    inside = launch((hear(), opaque(1 * US)), units=1)
    queues = (
        queue("stream0", inside),
        queue("stream1", hear(1), first),
        queue("host", hear(2), opaque(1 * US)),
        queue("nic0", move(0, 1, 100_000), tell(0), tell(0, 2)),  # ten microseconds later
        queue("nic1", tell(0, 1)),
    )
    found = spans(made(2, {0: queues}), machine(device=replace(DEVICE, signal=0.0)))
    assert found[0, "stream1", 1] == (0, close(10_001 * US))
    assert found[0, "stream0", 2][0] == close(10 * US)  # in a lane of what is there already
    assert found[0, "host", 1][0] == close((10 + 5) * US)  # seen by the host
