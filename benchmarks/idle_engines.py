"""What threads that have nothing to do take from one that computes on the same core."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.rows import Options, Row
from weft.calibration.microbenchmarks import one_thread
from weft.local_runs.overlap_measurement import of_first
from weft.runtime import Engines, World, spawn

QUESTION = "What do idle engines, and a worker that waits for a peer, take from a product?"
STATES = ("none", "idle", "waiting")
_EDGE = 256
_PRODUCTS = 100  # in a round, 50 ms: a thread that waits has gone to sleep by then
_LOOK = 0.005  # seconds between looks of the rank that is waited for


def run(options: Options) -> Iterator[Row]:
    """Measure a product on a core alone, next to idle threads, and next to a waiting worker."""
    with one_thread():
        found, shares = spawn(rank_main, 2, options.rounds)[0]
    for state, times in found.items():
        ratio = median(b / a for a, b in zip(found["none"], times, strict=True))
        more = {"slowdown": ratio, "cpu_share": median(shares[state])}
        yield Row("idle_engines", {"threads": state, "edge": _EDGE}, tuple(times), more=more)


Found = dict[str, list[float]]


def rank_main(world: World, rounds: int) -> tuple[Found, Found]:
    """Measure on rank 0; rank 1 comes to the barrier when it is told to.

    Gives seconds of a product, and the CPU time of the other threads as a share of the product's,
    which no other program on the machine can disturb.
    """
    cores = sorted(os.sched_getaffinity(0))
    mine = {cores[world.rank % len(cores)]}
    os.sched_setaffinity(0, mine)
    told = world.empty(1, "uint64")
    told[0] = 0
    word = of_first(world, told).view(np.uint64)
    factor = np.ones((_EDGE, _EDGE), np.float32)
    found: Found = {state: [] for state in STATES}
    shares: Found = {state: [] for state in STATES}
    for turn in range(1, rounds + 1):
        for state in STATES:
            world.barrier()
            world.set_engines(Engines() if state == "none" else Engines(cores=mine))
            work = world.barrier(async_op=True) if state == "waiting" and world.rank == 0 else None
            if world.rank == 0:
                threads = () if state == "none" else world.threads()
                before, begin = _busy(threads), time.thread_time()
                found[state].append(_product(factor))
                shares[state].append((_busy(threads) - before) / (time.thread_time() - begin))
            if work is not None:
                word[0] = turn
            if state == "waiting" and world.rank == 1:
                while word[0] < turn:
                    time.sleep(_LOOK)
                work = world.barrier(async_op=True)
            if work is not None:
                work.wait()
    return found, shares


def _busy(threads: tuple[int, ...]) -> float:
    """Return the seconds that threads of this process were on a core, as the kernel counts them."""
    texts = (Path(f"/proc/self/task/{each}/schedstat").read_text("ascii") for each in threads)
    return sum(int(text.split()[0]) for text in texts) / 1e9


def _product(factor: NDArray[Any]) -> float:
    """Return the median seconds of a product: what others take of the core falls out of it."""
    times = []
    for _ in range(_PRODUCTS):
        begin = time.perf_counter()
        factor @ factor
        times.append(time.perf_counter() - begin)
    return median(times)
