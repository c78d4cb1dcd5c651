"""Tiles as schedules: sound, in order, and every tile where its rank wants it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrays import Machine
from weft.errors import UsageError
from weft.fused.tiles import (
    KEEP,
    MAKE,
    SHOW,
    TAKE,
    USE,
    Tiles,
    gathered_tiles,
    reduced_tiles,
    scattered_tiles,
)
from weft.hardware import platform
from weft.schedule import Kernel
from weft.schedule.check import check
from weft.simulator import simulate

BUILDERS = (scattered_tiles, gathered_tiles, reduced_tiles)
SHAPES = {
    "num_ranks": st.integers(1, 4),
    "extent": st.integers(0, 9),
    "slices": st.integers(1, 4),
    "seed": st.integers(0, 99),
}


def run_twice(schedule, seed):
    """Write new numbers into every tile; return what was written and read, by execution."""
    check(schedule)
    numbers = np.random.default_rng(seed)
    written: list[bytes] = []
    read: list[bytes] = []

    def write(_reads, writes):
        for slot in writes:
            slot[:] = numbers.integers(0, 256, len(slot))
            written.append(slot.tobytes())

    def take(reads, _writes):
        read.extend(slot.tobytes() for slot in reads)

    ops = {MAKE: write, SHOW: write, KEEP: take, TAKE: take, USE: take}
    machine = Machine(schedule, seed, ops)
    found = []
    for _ in range(2):
        written.clear()
        read.clear()
        machine.run()
        found.append((sorted(written), sorted(read)))
    return found


@pytest.mark.parametrize(("builder", "readers"), [(scattered_tiles, 1), (gathered_tiles, None)])
@settings(max_examples=25)
@given(**SHAPES)
def test_every_tile_is_read_by_whom_it_is_for(builder, readers, num_ranks, extent, slices, seed):
    schedule = builder(Tiles(num_ranks, extent, 4, slices), "tiles")
    for written, read in run_twice(schedule, seed):
        times = num_ranks - 1 if readers is None else readers
        assert read == sorted(written * times)


@settings(max_examples=25)
@given(**SHAPES)
def test_every_summand_is_read_by_all(num_ranks, extent, slices, seed):
    schedule = reduced_tiles(Tiles(num_ranks, extent, 4, slices), "tiles")
    for written, read in run_twice(schedule, seed):
        assert read == sorted(written * num_ranks)


def test_tiles_for_others_are_made_first():
    schedule = scattered_tiles(Tiles(3, 6, 4, 2), "tiles")
    ops = [c.op for _, c in schedule.commands([1]) if isinstance(c, Kernel)]
    assert ops == [MAKE] * 4 + [KEEP] * 2 + [TAKE] * 2


@pytest.mark.parametrize("builder", BUILDERS)
def test_work_is_the_same_however_it_is_cut(builder):
    node = platform("mi300x-8")
    found = []
    for slices in (1, 4):
        schedule = builder(Tiles(8, 1024, 4096, slices, 1e9, "fp16"), "tiles")
        kernels = [c for _, c in schedule.commands([0]) if isinstance(c, Kernel)]
        assert simulate(schedule, node).makespan > 0
        found.append([sum(k.cost.flops for k in kernels), sum(k.cost.nbytes for k in kernels)])
    assert found[0] == pytest.approx(found[1])


def test_a_tile_has_no_more_lines_than_there_are():
    tiles = Tiles(2, 8, 4, 2)
    assert [tiles.clipped(number, 5) for number in (0, 1)] == [(0, 4), (4, 5)]
    assert [tiles.clipped(number, 3) for number in (0, 1)] == [(0, 3), (3, 3)]


@pytest.mark.parametrize("wrong", [(0, 1, 1, 1), (2, -1, 1, 1), (2, 1, 1, 0)])
def test_what_cannot_be_cut_is_refused(wrong):
    with pytest.raises(UsageError, match="tiles: cannot cut"):
        Tiles(*wrong)
