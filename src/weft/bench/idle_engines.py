"""What threads that have nothing to do take from one that computes on the same core."""

import os
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.bench.rows import Options, Row
from weft.runtime import Engines, World, spawn
from weft.runtime.measuring import one_thread

QUESTION = "What do idle engines, and a worker that waits for a peer, take from a product?"
STATES = ("none", "idle", "waiting")
_EDGE = 256
_PRODUCTS = 40  # in a round, half a second: a thread that waits has gone to sleep by then
_LOOK = 0.005  # seconds between looks of the rank that is waited for


def run(options: Options) -> Iterator[Row]:
    """Measure a product on a core alone, beside idle threads, and beside a waiting worker."""
    with one_thread():
        found = spawn(be_rank, 2, options.rounds)[0]
    alone = median(found["none"])
    for state, times in found.items():
        ratio = median(b / a for a, b in zip(found["none"], times, strict=True))
        more = {"slowdown": ratio, "alone": alone}
        yield Row("idle_engines", {"threads": state, "edge": _EDGE}, tuple(times), more=more)


def be_rank(world: World, rounds: int) -> dict[str, list[float]]:
    """Measure on rank 0; rank 1 comes to the barrier when it is told to."""
    cores = sorted(os.sched_getaffinity(0))
    mine = {cores[world.rank % len(cores)]}
    os.sched_setaffinity(0, mine)
    told = world.empty(1, "uint64")
    told[0] = 0
    word = world.member.view(world.region(0) + _offset(world, told), 8).view(np.uint64)
    factor = np.ones((_EDGE, _EDGE), np.float32)
    found: dict[str, list[float]] = {state: [] for state in STATES}
    for turn in range(1, rounds + 1):
        for state in STATES:
            world.barrier()
            world.set_engines(Engines() if state == "none" else Engines(cores=mine))
            work = world.barrier(async_op=True) if state == "waiting" and world.rank == 0 else None
            if world.rank == 0:
                found[state].append(_product(factor))
            if work is not None:
                word[0] = turn
            if state == "waiting" and world.rank == 1:
                while word[0] < turn:
                    time.sleep(_LOOK)
                work = world.barrier(async_op=True)
            if work is not None:
                work.wait()
    return found


def _product(factor: NDArray[Any]) -> float:
    """Give the median seconds of a product: what others take of the core falls out of it."""
    times = []
    for _ in range(_PRODUCTS):
        begin = time.perf_counter()
        factor @ factor
        times.append(time.perf_counter() - begin)
    return median(times)


def _offset(world: World, array: NDArray[Any]) -> int:
    here = world.member.view(world.region(world.rank), 1)
    return int(array.ctypes.data - here.ctypes.data)
