"""How often bytes pass which memory: 100 MB take a millisecond each time at 100 GB/s."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.paper import (
    GB,
    MB,
    close,
    launch,
    machine,
    made,
    matmul,
    move,
    queue,
    without_costs,
)
from weft.hardware import Kernels
from weft.schedule import Broadcast, Cost, Encode, Kernel, Launch, Reduce, Slice, Swap
from weft.simulator import simulate

MS = 1e-3
FREE = without_costs()
BYTES = 100 * MB


def x(rank, nbytes=BYTES):
    return Slice(rank, "x", 0, nbytes)


def y(rank, nbytes=BYTES):
    return Slice(rank, "y", 0, nbytes)


def seconds(queues, device=FREE, num_ranks=3):
    """Links and engines hold nobody up; memory does."""
    assert device.dma
    fast = replace(device, dma=replace(device.dma, engine_rate=1e6 * GB))
    on = machine(num_ranks, rate=1e6 * GB, device=fast)
    return simulate(made(num_ranks, queues), on).seconds


# What passes the busiest memory, in times of 100 MB.
PASSES = {
    "a copy elsewhere is read here": (move(0, 1, BYTES), 1),
    "a copy inside is read and written": (move(0, 0, BYTES), 2),
    "a copy between two others": (move(1, 2, BYTES), 1),
    "a broadcast is read once": (Broadcast(x(0), (y(1), y(2))), 1),
    "a broadcast into one memory is written as often": (Broadcast(x(1), (y(0), y(0), y(0))), 3),
    "a swap reads and writes both sides": (Swap(x(0), y(1)), 2),
    "a swap inside does so in one memory": (Swap(x(0), y(0)), 4),
    "a sum of three inside": (Reduce((x(0), x(0), x(0)), y(0)), 4),
    "a sum of two others is written here": (Reduce((x(1), x(2)), y(0)), 1),
    "what is encoded without a codec is a copy": (Encode(x(0), y(0), "none", "uint8"), 2),
}


@pytest.mark.parametrize("name", ["nic0", "copy0"])
@pytest.mark.parametrize(("command", "times"), PASSES.values(), ids=PASSES)
def test_every_byte_passes_the_memory_where_it_lies_once_for_each_access(command, times, name):
    assert seconds({0: (queue(name, command),)}) == close(times * MS)


@pytest.mark.parametrize(("command", "times"), PASSES.values(), ids=PASSES)
def test_units_that_copy_make_the_same_passes(command, times):
    wide = replace(FREE, unit_copy_rate=1e6 * GB)
    assert seconds({0: (queue("stream0", launch((command,), units=1)),)}, wide) == close(times * MS)


def test_two_ranks_that_send_to_each_other_read_and_write_both_memories():
    each = {r: (queue("nic0", move(r, 1 - r, BYTES)),) for r in range(2)}
    assert seconds(each) == close(2 * MS)


def test_memories_of_different_ranks_do_not_share():
    each = {r: (queue("nic0", move(r, r, BYTES)),) for r in range(3)}
    assert seconds(each) == close(2 * MS)


def test_a_copy_of_nothing_takes_no_time():
    assert seconds({0: (queue("nic0", move(0, 1, 0)),)}) == 0


def test_the_slices_of_a_kernel_are_part_of_its_traffic():
    kernel = Kernel("k", Cost("other", nbytes=BYTES), reads=(x(0),), writes=(y(0),))
    assert seconds({0: (queue("stream0", kernel),)}) == close(1 * MS)


def test_a_kernel_in_a_lane_uses_the_memory_of_its_rank():
    work = {r: (queue("stream0", launch((matmul(0, nbytes=BYTES),), units=1)),) for r in range(2)}
    assert seconds(work) == close(1 * MS)
    together = {0: (*work[0], queue("nic0", move(0, 1, BYTES)))}
    assert seconds(together) == close(2 * MS)


@settings(max_examples=40, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 50)), max_size=6),
)
def test_the_busiest_memory_decides_where_all_sizes_flow_at_once(copies):
    """No memory gives more than it has; the one with most to do is never idle before its end."""
    passed = [0, 0, 0]
    for src, dst, size in copies:
        passed[src] += size * MB
        passed[dst] += size * MB
    queues = tuple(queue(f"nic{n}", move(s, d, size * MB)) for n, (s, d, size) in enumerate(copies))
    have = seconds({0: queues})
    assert have >= max(passed) / (100 * GB) * (1 - 1e-9)
    assert have <= sum(passed) / (100 * GB) * (1 + 1e-9)


def kernels(**changed):
    """A device whose units move what memory can take."""
    return replace(FREE, unit_copy_rate=1000 * GB, kernels=Kernels(**changed))


def gather(*lanes, units=100, family="all_gather"):
    return Launch(lanes, units, family=family)


@pytest.mark.parametrize("staging", [0.0, 1.0, 2.0, 3.5])
def test_what_a_collectives_kernel_brings_passes_the_receivers_memory_again(staging):
    work = {0: (queue("stream0", gather((move(0, 1, BYTES),))),)}
    assert seconds(work, kernels(staging=staging)) == close((1 + staging) * MS)


# Next to a kernel that is staged: none of these is.
UNSTAGED = {
    "what a kernel brings to its own rank": gather((move(1, 0, BYTES),)),
    "a copy inside": gather((move(0, 0, BYTES // 2),)),
    "what a kernel of no collective brings": launch((move(0, 1, BYTES),), units=1),
    "a broadcast": gather((Broadcast(x(0), (y(1), y(2))),)),
    "a sum": gather((Reduce((x(1),), y(2)),)),
}


@pytest.mark.parametrize("command", UNSTAGED.values(), ids=UNSTAGED)
def test_only_copies_to_another_rank_by_a_collectives_kernel_are_staged(command):
    first = gather((move(0, 1, 1000 * MB),))
    work = {0: (queue("stream0", first, command),)}
    assert seconds(work, kernels(staging=2.0)) == close(30 * MS + 1 * MS)


@pytest.mark.parametrize("name", ["nic0", "copy0"])
def test_copies_outside_a_kernel_are_not_staged(name):
    kernel = queue("stream0", gather((move(2, 2, 1 * MB),)))
    work = {0: (kernel, queue(name, move(0, 1, BYTES)))}
    assert seconds(work, kernels(staging=2.0)) == close(1 * MS)


def test_staging_is_the_receivers_and_leaves_the_senders_memory_alone():
    """The receiver has three passes of each sender's bytes to make, a sender one."""
    sends = {r: (queue("stream0", gather((move(r, 2, BYTES),))),) for r in range(2)}
    assert seconds(sends, kernels(staging=2.0)) == close(2 * 3 * MS)
    local = queue("nic0", move(0, 0, BYTES))
    alone = {0: (*sends[0], local)}
    # Both read at 33 GB/s until the receiver is done: 3 ms; the copy inside has the rest of it.
    assert seconds(alone, kernels(staging=2.0)) == close(3 * MS)
