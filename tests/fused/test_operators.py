"""Fused operators on arrays: every slice arrives, sums are sums, and nothing moves in vain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrays import Machine
from validation.fused_prices import fed_by_host
from weft.errors import UsageError
from weft.fused import (
    Sliced,
    apart_all_to_all,
    fused_all_reduce,
    fused_all_to_all,
)
from weft.hardware import platform
from weft.schedule import Copy, Cost, Kernel
from weft.schedule.check import check
from weft.simulator import simulate

SIZE = 4  # bytes of a slice


LOOKUPS = Cost(nbytes=1 << 20)


def work(num_ranks, slices, cost=LOOKUPS):
    return Sliced("lookups", num_ranks, slices, cost, SIZE * num_ranks * slices)


def bytes_of(command):
    """What a command copies."""
    return command.src.nbytes if isinstance(command, Copy) else 0


def run_twice(schedule, seed):
    """Run kernels that write new numbers each time; return the memory and what was written."""
    check(schedule)
    numbers, written = np.random.default_rng(seed), {}

    def make(_reads, writes):
        (slot,) = writes
        slot[:] = numbers.integers(0, 256, len(slot))
        written[slot.__array_interface__["data"][0]] = slot.copy()

    machine = Machine(schedule, seed, {"lookups": make})
    machine.run()
    machine.run()
    return machine.memory, written


def block(memory, rank, buffer, number, slices):
    length = SIZE * slices
    return memory[rank, buffer][number * length : (number + 1) * length]


def own_block(memory, written, rank, buffer, slices):
    """What a rank made for itself, as its kernels wrote it."""
    start = block(memory, rank, buffer, rank, slices).__array_interface__["data"][0]
    return np.concatenate([written[start + k * SIZE] for k in range(slices)])


def made_for(memory, written, rank, target, num_ranks, slices, buffer):
    if rank == target:
        return own_block(memory, written, rank, buffer, slices)
    return block(memory, rank, "made", (target - rank) % num_ranks - 1, slices)


SHAPES = {"num_ranks": st.integers(2, 5), "slices": st.integers(1, 4), "seed": st.integers(0, 99)}


@pytest.mark.parametrize("remote_first", [True, False])
@settings(max_examples=20)
@given(**SHAPES)
def test_every_slice_is_where_its_rank_wants_it(num_ranks, slices, seed, remote_first):
    schedule = fused_all_to_all(work(num_ranks, slices), units=1, remote_first=remote_first)
    memory, written = run_twice(schedule, seed)
    for target in range(num_ranks):
        for rank in range(num_ranks):
            have = block(memory, target, "out", rank, slices)
            want = made_for(memory, written, rank, target, num_ranks, slices, "out")
            assert np.array_equal(have, want), (rank, target)


@settings(max_examples=20)
@given(**SHAPES)
def test_every_rank_has_the_sums(num_ranks, slices, seed):
    schedule = fused_all_reduce(work(num_ranks, slices), units=1)
    memory, written = run_twice(schedule, seed)
    for part in range(num_ranks):
        want = sum(
            made_for(memory, written, rank, part, num_ranks, slices, "data")
            for rank in range(num_ranks)
        )
        for rank in range(num_ranks):
            assert np.array_equal(block(memory, rank, "data", part, slices), want.astype(np.uint8))


def test_only_what_is_for_others_is_sent():
    schedule = fused_all_to_all(work(4, 3), units=1)
    sent = sum(bytes_of(c) for _, c in schedule.commands())
    assert sent == 4 * 3 * (3 * SIZE)


def test_remote_slices_are_made_first():
    schedule = fused_all_to_all(work(4, 2), units=1)
    made = [c.writes[0].buffer for p, c in schedule.commands([0]) if isinstance(c, Kernel)]
    assert made == ["made"] * 6 + ["out"] * 2


def test_work_is_the_same_fused_or_apart():
    whole = work(4, 2, Cost(flops=1e9, nbytes=1 << 20))
    fused = [c.cost for _, c in fused_all_to_all(whole, units=1).commands([0]) if type(c) is Kernel]
    assert sum(cost.flops for cost in fused) == pytest.approx(1e9)
    assert sum(cost.nbytes for cost in fused) == 1 << 20


def test_less_in_flight_takes_longer():
    whole = work(4, 2, Cost(nbytes=1 << 30))
    seconds = [
        simulate(fused_all_to_all(whole, units=104, occupancy=share), platform("mi210-4")).makespan
        for share in (1.0, 0.875)
    ]
    assert seconds[1] == pytest.approx(seconds[0] / 0.875, rel=0.01)


def test_a_host_launches_one_kernel_instead_of_three():
    machine, size = platform("mi210-4"), work(4, 1)
    alone = [simulate(s, machine).makespan for s in (fused_all_to_all(size, units=104),)]
    fed = [simulate(fed_by_host(fused_all_to_all(size, units=104)), machine).makespan]
    device = machine.require_device()
    assert fed[0] - alone[0] == pytest.approx(device.host_launch)
    assert simulate(fed_by_host(apart_all_to_all(size)), machine).makespan > fed[0]


@pytest.mark.parametrize(
    ("num_ranks", "slices", "nbytes", "says"),
    [
        (1, 1, 8, "two ranks or more"),
        (2, 0, 8, "Use two ranks or"),
        (2, 3, 8, "another number of slices"),
    ],
)
def test_what_cannot_be_cut_is_refused(num_ranks, slices, nbytes, says):
    with pytest.raises(UsageError) as caught:
        Sliced("lookups", num_ranks, slices, Cost(), nbytes)
    assert says in caught.value.hint
