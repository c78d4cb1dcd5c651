"""Collectives prepared on memory of the heap: right values, by whichever algorithm is chosen."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.runtime.leftovers import nothing_left
from weft.errors import RankDiedError, UsageError
from weft.runtime import bind_persistent, prepare, prepare_collective, spawn
from weft.schedule import SELF, Buffer, Kernel, Program, Queue, Schedule, Slice

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]
SIZES = (256, 8 << 10, 40 << 10)


def broadcast(world, nbytes):
    """The root runs ahead: every execution must bring what it had then."""
    x = world.empty(nbytes // 4)
    ready = prepare_collective(world, "broadcast", nbytes, root=1)
    act, held = bind_persistent(ready, {"data": x}), []
    for turn in range(30):
        x[:] = turn if world.rank == 1 else -1
        act()
        held.append((x == turn).all())
    ready.close()
    return ready.schedule.name.split()[0], all(held)


def all_reduce(world, nbytes):
    x = world.empty(nbytes // 4)
    ready = prepare_collective(world, "all_reduce", nbytes, op="max")
    act, held = bind_persistent(ready, {"data": x}), []
    for turn in range(30):
        x[:] = turn + world.rank
        act()
        held.append((x == turn + world.num_ranks - 1).all())
    ready.close()
    return ready.schedule.name.split()[0], all(held)


def all_gather(world, nbytes):
    x, out = world.empty(nbytes // 4 // world.num_ranks), world.empty(nbytes // 4)
    ready = prepare_collective(world, "all_gather", nbytes)
    act = bind_persistent(ready, {"in": x, "out": out})
    x[:] = world.rank
    act()
    held = np.array_equal(out, np.repeat(np.arange(world.num_ranks), x.size))
    ready.close()
    return ready.schedule.name.split()[0], held


def be_all(world):
    return [act(world, nbytes) for act in (broadcast, all_reduce, all_gather) for nbytes in SIZES]


def test_every_execution_is_right_and_little_is_laid_out():
    with nothing_left():
        for found in spawn(be_all, 2, timeout=60):
            assert [held for _, held in found] == [True] * len(found)
            assert [name for name, _ in found[:6]] == ["eager", "pull", "pull"] * 2
            assert [name for name, _ in found[6:]] == ["pull"] * 3


def be_left_alone(world):
    """Rank 1 never comes to the second call."""
    ready = prepare_collective(world, "all_gather", 1 << 10)
    act = bind_persistent(ready, {"in": world.empty(128), "out": world.empty(256)})
    act()
    if world.rank == 1:
        os._exit(3)
    with pytest.raises(RankDiedError, match=r"rank 1 died .* in pull all_gather"):
        act()
    return "told"


def test_a_persistent_collective_names_the_rank_that_died():
    with nothing_left(), pytest.raises(RankDiedError, match="rank 1 died"):
        spawn(be_left_alone, 2, timeout=30)


def stand_with_kernels(world):
    kernel = Kernel("act", reads=(Slice(SELF, "in", 0, 64),), writes=(Slice(SELF, "out", 0, 64),))
    buffers = (Buffer("in", 64, "in"), Buffer("out", 64, "out"))
    program = Program((0,), (Queue("stream0", (kernel,)),))
    made = Schedule("with a kernel", 1, (program,), buffers, 0)
    with prepare(made, world) as ready, pytest.raises(UsageError, match="has kernels"):
        bind_persistent(ready, {})


def test_kernels_are_refused():
    with nothing_left():
        spawn(stand_with_kernels, 1, timeout=30)
