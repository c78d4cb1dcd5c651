"""What this machine achieves: two ranks measure copies, sums, flags, calls and products.

Everything that is compared is measured in turn, round by round, so that a noisy moment is noisy
for all of it. The median counts of those rounds in which the thread had its core to itself, as
its CPU time shows; where others hardly ever let it, the best round.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft._core import time_copies, time_reads, time_reduces, time_round_trips
from weft.collectives import collective
from weft.runtime.interpreter import prepare
from weft.runtime.memory import located
from weft.runtime.world import World

RANKS = 2
SETS = tuple(16 << 10 << shift for shift in (0, 2, 4, 6, 8, 9, 10, 11, 12, 13))  # to 128 MiB
STORES = ("cached", "streamed")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int32", "int64", "uint8")
CALLS = ("pull", "dma-b2b")
FAR = 1 << 20
EDGE = 768  # of matrices: three of them fit the second-level caches of most, and it takes 10 ms
_ROUNDS = 9
_LEAST = 1e-3  # seconds of one measurement: enough for the clock, less than a turn of a thread
_UNDISTURBED = 0.95  # of the time on the core
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Measured = dict[str, float]
Act = Callable[[int], float]  # does it so many times and gives the seconds


@contextmanager
def one_thread() -> Iterator[None]:
    """Let processes started meanwhile multiply matrices in one thread."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def pin(world: World) -> None:
    """Give every rank a core of its own, as far as there are as many."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[world.rank % len(cores)]})


def copies(world: World) -> Measured:
    """Give seconds for a byte that a copy writes, by ``SET STORE alone|both``."""
    pin(world)
    src, dst = world.empty(max(SETS) // 2, "uint8"), world.empty(max(SETS) // 2, "uint8")
    src[:], dst[:] = 1, 0
    here, there = located(src)[0], located(dst)[0]

    def act(nbytes: int, store: str) -> Act:
        return lambda count: time_copies(here, there, nbytes, store == "streamed", count)

    acts = {f"{each} {store}": act(each // 2, store) for each in SETS for store in STORES}
    sizes = {f"{each} {store}": each // 2 for each in SETS for store in STORES}
    return _seconds(world, acts, sizes)


def sums(world: World) -> Measured:
    """Give seconds for a byte that a sum of two writes, by ``SET alone|both`` and by dtype."""
    pin(world)
    room = max(SETS) // 3 // 64 * 64
    a, b, out = (located(world.empty(room, "uint8"))[0] for _ in range(3))
    sizes = {str(each): each // 3 // 64 * 64 for each in SETS}

    def act(dtype: str, nbytes: int) -> Act:
        return lambda count: time_reduces(dtype, a, b, out, nbytes, count)

    acts = {name: act("float32", nbytes) for name, nbytes in sizes.items()}
    acts |= {dtype: act(dtype, FAR // 4) for dtype in DTYPES}
    return _seconds(world, acts, sizes | dict.fromkeys(DTYPES, FAR // 4))


def flags(world: World) -> Measured:
    """Give seconds of a flag's way there and back: ``spin`` and ``yield``."""
    pin(world)
    word = world.empty(8, "uint64")
    word[0] = 0
    mine, _ = located(word)
    block = mine - located(world.member.view(world.region(world.rank), 8))[0]
    theirs, _ = located(world.member.view(world.region(1 - world.rank) + block, 8))
    count, raised, first = 500, 0, world.rank == 0
    found = Rounds()
    for _ in range(_ROUNDS):
        for name in ("spin", "yield"):
            world.barrier()
            with found.timed(name, count):
                time_round_trips(mine, theirs, raised, first, name == "spin", count)
            raised += count
    return found.medians()


def calls(world: World) -> Measured:
    """Give seconds of a prepared collective that moves next to nothing, by its algorithm."""
    pin(world)
    nbytes, count = 64 * world.num_ranks, 50
    ready = {
        name: prepare(
            collective("all_gather", name, num_ranks=world.num_ranks, nbytes=nbytes), world
        )
        for name in CALLS
    }
    found = Rounds()
    for _ in range(_ROUNDS):
        for name, prepared in ready.items():
            world.barrier()
            with found.timed(name, count):
                for _ in range(count):
                    prepared.run()
    return found.medians()


def far_reads(world: World) -> Measured:
    """Give seconds for a byte that a rank reads from ordinary memory of another process."""
    pin(world)
    theirs, mine = np.ones(FAR, np.uint8), np.zeros(FAR, np.uint8)
    shown = world.agree("far", located(theirs)[0].to_bytes(8, "little"))
    if world.stages:
        return {}
    address = int.from_bytes(shown[1 - world.rank], "little")
    pid, dst = world.member.pid(1 - world.rank), located(mine)[0]
    act: Act = lambda count: time_reads(pid, address, dst, FAR, count)  # noqa: E731
    found = _seconds(world, {"far": act}, {"far": FAR})
    world.barrier()  # the other one still reads
    return found


def products(world: World) -> Measured:
    """Give seconds for a flop of products of matrices in one thread, by dtype; by rank 0 alone."""
    pin(world)
    factors: dict[str, NDArray[Any]] = {
        "fp32": np.ones((EDGE, EDGE), np.float32),
        "fp64": np.ones((EDGE, EDGE)),
    }
    found = Rounds()
    for turn in range(_ROUNDS * (world.rank == 0)):
        for name, factor in factors.items():
            with found.timed(name if turn else "warming up", 2 * EDGE**3):
                factor @ factor
    world.barrier()
    return found.medians()


class Round(NamedTuple):
    """How much of the time the thread was on its core, and the seconds of one of its acts."""

    share: float
    seconds: float


def typical(rounds: Sequence[Round]) -> float:
    """Give the median of the undisturbed rounds, or the best of all if those are few."""
    quiet = [each.seconds for each in rounds if each.share >= _UNDISTURBED]
    few = len(quiet) * 3 < len(rounds)
    return min(each.seconds for each in rounds) if few else median(quiet)


class Rounds:
    """Rounds by what was measured in them."""

    def __init__(self) -> None:
        self.found: dict[str, list[Round]] = {}

    @contextmanager
    def timed(self, name: str, count: float = 1) -> Iterator[None]:
        """Measure what stands inside, which does something ``count`` times."""
        busy, begin = time.thread_time(), time.perf_counter()
        yield
        passed = max(time.perf_counter() - begin, 1e-9)
        share = (time.thread_time() - busy) / passed
        self.found.setdefault(name, []).append(Round(share, passed / count))

    def medians(self) -> Measured:
        """Give the typical seconds of each."""
        return {name: typical(each) for name, each in self.found.items()}


def _seconds(world: World, acts: Mapping[str, Act], sizes: Mapping[str, int]) -> Measured:
    """Measure a byte of each act on rank 0 alone and on both ranks at once; a rank waits asleep."""
    counts = {name: _count(world, act) for name, act in acts.items()}
    found = Rounds()
    for _ in range(_ROUNDS):
        for name, act in acts.items():
            world.barrier()
            if world.rank == 0:
                with found.timed(f"{name} alone", counts[name] * sizes[name]):
                    act(counts[name])
            world.barrier()
            with found.timed(f"{name} both", counts[name] * sizes[name]):
                act(counts[name])
    return found.medians()


def _count(world: World, act: Act) -> int:
    """Choose how often an act is repeated: the same on both ranks; this also warms it up."""
    act(1)
    world.barrier()
    shown = world.agree("seconds", str(act(2) / 2).encode())
    return max(1, int(_LEAST / max(1e-8, *(float(each) for each in shown))))
