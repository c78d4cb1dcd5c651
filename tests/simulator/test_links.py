"""Which ports and links bytes cross, what each of them carries, and who shares it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.paper import (
    GB,
    HOST,
    MB,
    US,
    bare,
    close,
    launch,
    machine,
    made,
    move,
    queue,
    spans,
    without_costs,
)
from tests.simulator.reference import Flow, Send, finish_times
from tests.simulator.routes import links
from weft.collectives import collective
from weft.hardware import Level, Platform
from weft.schedule import (
    SELF,
    Broadcast,
    Buffer,
    Copy,
    Cost,
    Decode,
    Encode,
    Group,
    Kernel,
    Program,
    Reduce,
    Schedule,
    Slice,
    Swap,
    flipped,
    shifted,
)
from weft.simulator import simulate

MS = 1e-3
FREE = without_costs()
SWITCH = Level("switch", 4, 10 * GB)


def piece(rank, nbytes, buffer="x"):
    return Slice(rank, buffer, 0, nbytes)


def end_of(command, network, others=None):
    """When a command of rank 0 ends, next to others on queues of their own."""
    more = {rank: (queue("nic9", each),) for rank, each in (others or {}).items()}
    mine = {0: (queue("nic0", command), *more.pop(0, ()))}
    return spans(made(network.num_ranks, mine | more), network)[0, "nic0", 0][1]


# Each takes 10 MB over a port of 10 GB/s as often as it says: so many milliseconds.
CROSSINGS = {
    "a copy leaves its source": (move(0, 1, 10 * MB), 1),
    "a copy inside a rank": (move(0, 0, 10 * MB), 0),
    "a copy between two others": (move(1, 2, 10 * MB), 1),
    "a broadcast to three": (
        Broadcast(piece(0, 10 * MB), tuple(piece(r, 10 * MB, "y") for r in (1, 2, 3))),
        3,
    ),
    "a broadcast to itself and one other": (
        Broadcast(piece(0, 10 * MB), tuple(piece(r, 10 * MB, "y") for r in (0, 1))),
        1,
    ),
    "a swap goes both ways at once": (Swap(piece(0, 10 * MB), piece(1, 10 * MB, "y")), 1),
    "a swap of two others": (Swap(piece(1, 10 * MB), piece(2, 10 * MB, "y")), 1),
    "a swap inside a rank": (Swap(piece(0, 10 * MB), piece(0, 10 * MB, "y")), 0),
    "a sum of two others comes in twice": (
        Reduce((piece(1, 10 * MB), piece(2, 10 * MB)), piece(0, 10 * MB, "y")),
        2,
    ),
    "a sum here that is written elsewhere": (
        Reduce((piece(0, 10 * MB), piece(0, 10 * MB)), piece(1, 10 * MB, "y")),
        1,
    ),
    "a sum of another for a third": (Reduce((piece(1, 10 * MB),), piece(2, 10 * MB, "y")), 1),
    "an encoding into another rank": (
        Encode(piece(0, 10 * MB), piece(1, 10 * MB, "y"), "none", "uint8"),
        1,
    ),
    "a decoding from another rank": (
        Decode(piece(1, 10 * MB), piece(0, 10 * MB, "y"), "none", "uint8"),
        1,
    ),
}


@pytest.mark.parametrize(("command", "times"), CROSSINGS.values(), ids=CROSSINGS)
def test_bytes_cross_a_port_as_often_as_they_change_ranks(command, times):
    assert end_of(command, bare(SWITCH)) == close(times * MS)


@pytest.mark.parametrize("other", [1, 2])
def test_a_swap_shares_the_ports_of_both_its_ranks_in_both_directions(other):
    swap = Swap(piece(1, 10 * MB), piece(2, 10 * MB, "y"))
    leaving, coming = move(other, 3, 10 * MB), move(3, other, 10 * MB)
    assert end_of(swap, bare(SWITCH), {3: leaving}) == close(2 * MS)
    assert end_of(swap, bare(SWITCH), {3: coming}) == close(2 * MS)
    assert end_of(swap, bare(SWITCH), {3: move(3, 0, 10 * MB)}) == close(1 * MS)


@pytest.mark.parametrize(("src", "dst", "seconds"), [(1, 3, 2), (3, 2, 2), (3, 1, 1), (2, 3, 1)])
def test_a_sum_is_read_out_of_its_sources_and_written_into_its_destination(src, dst, seconds):
    """It shares the port of rank 1 outwards, of rank 2 inwards, and no other direction."""
    add = Reduce((piece(1, 10 * MB),), piece(2, 10 * MB, "y"))
    assert end_of(add, bare(SWITCH), {3: move(src, dst, 10 * MB)}) == close(seconds * MS)


def test_a_kernel_reads_out_of_other_ranks_and_writes_into_them():
    network = machine(4, device=FREE)
    reads = kernel_of(10 * MB, reads=(piece(1, 10 * MB),))
    writes = kernel_of(10 * MB, writes=(piece(1, 10 * MB, "y"),))
    for kernel, busy, seconds in (
        (reads, (1, 3), 2),
        (reads, (3, 1), 1),
        (writes, (3, 1), 2),
        (writes, (1, 3), 1),
    ):
        assert end_of(kernel, network, {3: move(*busy, 10 * MB)}) == close(seconds * MS)


def kernel_of(nbytes, reads=(), writes=()):
    return Kernel("k", Cost("other", nbytes=nbytes), reads=reads, writes=writes)


@pytest.mark.parametrize("traffic", [5 * MB, 20 * MB])
def test_a_kernel_reads_from_and_writes_to_other_ranks_over_the_links(traffic):
    """Whatever its own traffic, the 10 MB of the slice cross a port of 10 GB/s."""
    on = machine(2, device=FREE)
    for kernel in (
        kernel_of(traffic, reads=(piece(1, 10 * MB),)),
        kernel_of(traffic, writes=(piece(1, 10 * MB, "y"),)),
    ):
        assert simulate(made(2, {0: (queue("stream0", kernel),)}), on).seconds == close(1 * MS)


def test_what_a_kernel_reads_and_what_it_writes_pass_the_two_directions_of_its_port():
    both = kernel_of(MB, (piece(1, 10 * MB),), (piece(1, 10 * MB, "y"),))
    two = kernel_of(MB, (piece(1, 10 * MB), piece(1, 10 * MB)))
    near = kernel_of(MB, (piece(0, 10 * MB),), (piece(0, 10 * MB, "y"),))
    for kernel, seconds in ((both, 1 * MS), (two, 2 * MS), (near, 0.01 * MS)):
        work = made(2, {0: (queue("stream0", kernel),)})
        assert simulate(work, machine(2, device=FREE)).seconds == close(seconds)


def test_an_empty_slice_of_another_rank_costs_a_kernel_nothing():
    kernel = kernel_of(100 * MB, reads=(piece(1, 0),))
    work = made(2, {0: (queue("stream0", kernel),)})
    assert simulate(work, machine(2, device=FREE)).seconds == close(1 * MS)


LEVELS = st.builds(
    Level,
    st.sampled_from(["switch", "mesh", "ring"]),
    st.integers(1, 5),
    st.sampled_from([1 * GB, 3 * GB, 10 * GB]),
)


@settings(max_examples=80, derandomize=True)
@given(data=st.data(), levels=st.lists(LEVELS, min_size=1, max_size=3))
def test_every_copy_shares_all_links_of_its_way_fairly(data, levels):
    network = bare(*levels)
    ranks = st.integers(0, network.num_ranks - 1)
    copies = st.tuples(ranks, ranks, st.integers(1, 20))
    chosen = data.draw(st.lists(copies, min_size=1, max_size=8))
    far = [(src, dst, size * MB) for src, dst, size in chosen if src != dst]
    have = [
        end
        for (_, name, _), (_, end) in sorted(spans(sent(network.num_ranks, far), network).items())
        if name.startswith("nic")
    ]
    assert have == pytest.approx(fair_ends(far, network), rel=1e-9)


def sent(num_ranks, copies):
    """All copies at once, each on a queue of its own of rank 0: who runs them does not matter."""
    queues = tuple(queue(f"nic{n:02}", move(*copy)) for n, copy in enumerate(copies))
    return made(num_ranks, {0: queues})


def fair_ends(copies, network):
    numbers: dict[object, int] = {}
    numbering, capacity, sends = count(), [], []
    for src, dst, nbytes in copies:
        weights: dict[int, float] = {}
        for link, rate in links(src, dst, network):
            if link not in numbers:
                numbers[link] = next(numbering)
                capacity.append(rate)
            weights[numbers[link]] = 1.0
        sends.append(Send(Flow(weights), float(nbytes)))
    return finish_times(sends, capacity)


@pytest.mark.parametrize("size", [2, 5, 8])
def test_a_rank_of_a_mesh_divides_its_rate_among_all_its_peers(size):
    network = bare(Level("mesh", size, (size - 1) * GB))
    assert end_of(move(0, size - 1, 10 * MB), network) == close(10 * MS)


def test_a_mesh_of_ranks_alike_still_has_a_link_for_each_pair():
    """Peers by xor: rank 0 and its partner both stand for all others."""
    network = bare(Level("mesh", 4, 3 * GB))
    schedule = collective("all_reduce", "halving-doubling", num_ranks=4, nbytes=4 * MB)
    collapsed, every = (simulate(schedule, network, collapse=c) for c in (True, False))
    assert len(collapsed.ranks) == 1
    # Halves, then quarters, and back: 2 + 1 + 1 + 2 MB over one link at a time.
    assert collapsed.seconds == close(every.seconds) == close(6 * MS)


@pytest.mark.parametrize("peer", [shifted(Group(4), 1), flipped(Group(4), 1), flipped(Group(4), 3)])
def test_a_link_of_ranks_alike_is_shared_by_who_writes_and_who_reads_over_it(peer):
    """Every rank sends to its peer and reads what its own partner has for it, over one link."""
    back = shifted(Group(4), 3) if peer == shifted(Group(4), 1) else peer
    push = queue("nic0", Copy(piece(SELF, 10 * MB), piece(peer, 10 * MB, "y")))
    pull = queue("nic1", Copy(piece(back, 10 * MB), piece(SELF, 10 * MB, "y")))
    buffers = (Buffer("x", 10 * MB), Buffer("y", 10 * MB))
    schedule = Schedule("both", 4, (Program(range(4), (push, pull)),), buffers)
    network = bare(Level("mesh", 4, 3 * GB))
    collapsed, every = (simulate(schedule, network, collapse=c) for c in (True, False))
    assert len(collapsed.ranks) == 1
    assert collapsed.seconds == close(every.seconds) == close(20 * MS)


NODES = (Level("switch", 2, 10 * GB), Level("switch", 2, 10 * GB))


def staged(*levels, rate):
    return Platform(
        "paper", device=FREE, levels=levels, staged=True, host=replace(HOST, memory_rate=rate)
    )


def test_each_node_has_a_host_memory_of_its_own():
    slow = staged(*NODES, rate=2 * GB)
    inside = {rank: (queue("nic0", move(rank, rank + 1, 10 * MB)),) for rank in (0, 2)}
    assert simulate(made(4, inside), slow).seconds == close(10 * MS)  # 20 MB through 2 GB/s each


@pytest.mark.parametrize(("src", "dst"), [(0, 2), (1, 2), (3, 0)])
def test_what_leaves_its_node_does_not_pass_the_hosts_memory(src, dst):
    slow = staged(*NODES, rate=2 * GB)
    across = made(4, {src: (queue("nic0", move(src, dst, 10 * MB)),)})
    assert simulate(across, slow).seconds == close(1 * MS)


@pytest.mark.parametrize(("levels", "classes", "local"), [((SWITCH,), 1, 4 * 3), (NODES, 2, 2)])
def test_ranks_alike_share_the_hosts_memory_as_if_all_were_there(levels, classes, local):
    network = staged(*levels, rate=1 * GB)
    schedule = collective("all_to_all", "direct", num_ranks=4, nbytes=4 * MB)
    collapsed, every = (simulate(schedule, network, collapse=c) for c in (True, False))
    assert len(collapsed.ranks) == classes
    assert every.seconds == close(local * 2 * MS)  # chunks of a MB that stay inside a node
    assert collapsed.seconds == close(every.seconds)


def test_a_machine_without_staging_has_no_use_for_the_hosts_memory():
    direct = replace(staged(SWITCH, rate=1.0), staged=False)
    assert end_of(move(0, 1, 10 * MB), direct) == close(1 * MS)


def test_a_staged_machine_whose_host_nobody_knows_is_held_up_by_its_links():
    unknown = replace(staged(SWITCH, rate=1.0), host=None)
    assert end_of(move(0, 1, 10 * MB), unknown) == close(1 * MS)


def test_part_of_a_sum_passes_the_hosts_memory():
    """Rank 0 adds what is here to what another has: 10 of its 20 MB come over."""
    add = Reduce((piece(0, 10 * MB), piece(1, 10 * MB)), piece(0, 10 * MB, "y"))
    assert end_of(add, staged(SWITCH, rate=4 * GB)) == close(5 * MS)


@settings(max_examples=30, derandomize=True)
@given(
    kind=st.sampled_from(["switch", "mesh", "ring"]),
    size=st.integers(2, 6),
    shift=st.integers(1, 5),
    nbytes=st.integers(1, 50),
)
def test_it_does_not_matter_which_rank_sends(kind, size, shift, nbytes):
    """On a level that looks the same from everywhere, all ranks send as fast as rank 0."""
    network = bare(Level(kind, size, GB, 1 * US))
    shift %= size
    times = {
        rank: simulate(
            made(size, {rank: (queue("nic0", move(rank, (rank + shift) % size, nbytes * MB)),)}),
            network,
        ).seconds
        for rank in range(size)
    }
    assert len(set(times.values())) == 1


def test_a_launch_sends_over_links_like_any_queue():
    work = launch((move(0, 1, 10 * MB),), (move(0, 2, 10 * MB),), units=100)
    found = spans(made(3, {0: (queue("stream0", work),)}), machine(3, device=FREE))
    assert found[0, "stream0", 0][1] == close(2 * MS)
