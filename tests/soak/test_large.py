"""Collectives of more than 2^31 bytes, and of more elements than an int counts."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.leftovers import nothing_left
from weft.runtime import spawn

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.timeout(600)]

LONG = (1 << 31) + (200 << 20) + 12_345  # bytes: past 2^31, and no multiple of anything
CHUNK = 32 << 20
NEEDED = 11 << 30  # two ranks with an input and an output each


def room() -> int:
    meminfo = Path("/proc/meminfo").read_text().split()
    memory = int(meminfo[meminfo.index("MemAvailable:") + 1]) << 10
    shared = os.statvfs("/dev/shm")
    return min(memory, 2 * shared.f_bavail * shared.f_frsize)


@pytest.fixture(autouse=True)
def _enough_memory():
    if room() < NEEDED:
        pytest.skip(f"needs {NEEDED >> 30} GiB of memory, half of it in /dev/shm")
    with nothing_left():
        yield


@cache
def base():
    return np.resize(np.arange(251, dtype=np.uint8), CHUNK)


def pattern(start, size, rank):
    """Bytes that tell where they belong: other ones in every chunk, and on every rank."""
    return base()[:size] + np.uint8((start // CHUNK + 101 * rank) % 256)


def parts(array):
    for start in range(0, array.size, CHUNK):
        yield start, array[start : start + CHUNK]


def fill(array, rank):
    for start, part in parts(array):
        part[:] = pattern(start, part.size, rank)


def holds(array, *ranks):
    """Whether every byte is the sum of what these ranks filled in."""
    return all(
        np.array_equal(
            part, sum((pattern(start, part.size, rank) for rank in ranks), np.zeros(1, np.uint8))
        )
        for start, part in parts(array)
    )


def memory(world, nbytes, where):
    return world.empty(nbytes, "uint8") if where == "heap" else np.empty(nbytes, np.uint8)


def broadcast(world, where):
    x = memory(world, LONG, where)
    fill(x, world.rank)
    world.broadcast(x, 1)
    return holds(x, 1)


def all_reduce(world, where):
    x = memory(world, LONG, where)
    fill(x, world.rank)
    world.all_reduce(x)
    return holds(x, 0, 1)


def all_gather(world, where):
    x, out = memory(world, LONG // 2, where), memory(world, LONG // 2 * 2, where)
    fill(x, world.rank)
    world.all_gather(out, x, async_op=True).wait()
    first, second = np.split(out, 2)
    return holds(first, 0) and holds(second, 1)


def exchange(world, where):
    """Rank 0 gives rank 1 all it has; rank 1 gives little."""
    x = memory(world, LONG, where) if world.rank == 0 else np.empty(3, np.uint8)
    if where == "heap" and world.rank == 1:
        memory(world, LONG, where)
    fill(x, world.rank)
    sizes = [[0, LONG], [3, 0]]
    out = np.empty(sizes[1 - world.rank][world.rank], np.uint8)
    received = [sizes[other][world.rank] for other in range(2)]
    world.all_to_all(out, x, received, sizes[world.rank])
    return holds(out, 1 - world.rank)


@pytest.mark.parametrize("where", ["heap", "ordinary"])
@pytest.mark.parametrize("call", [broadcast, all_reduce, all_gather, exchange])
def test_more_than_two_gibibytes_arrive_whole(call, where):
    assert spawn(call, 2, where, timeout=300) == [True, True]


def message(world, where):
    x = memory(world, LONG, where)
    fill(x, world.rank)
    if world.rank == 0:
        world.send(x, 1)
        return True
    world.recv(x, 0)
    return holds(x, 0)


@pytest.mark.parametrize("where", ["heap", "ordinary"])
def test_a_long_message_arrives_whole(where):
    assert spawn(message, 2, where, timeout=300) == [True, True]
