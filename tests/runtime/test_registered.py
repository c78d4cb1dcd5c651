"""Collectives prepared on memory of the heap: right values, by whichever algorithm is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.left import nothing_left
from weft.runtime import prepare_collective, spawn

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]
SIZES = (256, 8 << 10, 40 << 10)


def broadcast(world, nbytes):
    """The root runs ahead: every execution must bring what it had then."""
    x = world.empty(nbytes // 4)
    ready = prepare_collective(world, "broadcast", nbytes, root=1)
    binds, held = ready.binds({"data": x}), []
    for turn in range(30):
        x[:] = turn if world.rank == 1 else -1
        ready.execute(binds, "")
        held.append((x == turn).all())
    ready.close()
    return ready.schedule.name.split()[0], all(held)


def all_reduce(world, nbytes):
    x = world.empty(nbytes // 4)
    ready = prepare_collective(world, "all_reduce", nbytes, op="max")
    binds, held = ready.binds({"data": x}), []
    for turn in range(30):
        x[:] = turn + world.rank
        ready.execute(binds, "")
        held.append((x == turn + world.num_ranks - 1).all())
    ready.close()
    return ready.schedule.name.split()[0], all(held)


def all_gather(world, nbytes):
    x, out = world.empty(nbytes // 4 // world.num_ranks), world.empty(nbytes // 4)
    ready = prepare_collective(world, "all_gather", nbytes)
    binds = ready.binds({"in": x, "out": out})
    x[:] = world.rank
    ready.execute(binds, "")
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
