"""What this machine achieves: two ranks measure copies, sums, flags, calls and products.

Everything that is compared is measured in turn, round by round, and the median of the rounds
counts, so that a noisy moment is noisy for all of it.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median

import numpy as np

from weft._core import time_copies, time_reads, time_reduces, time_round_trips
from weft.collectives import collective
from weft.runtime.interpreter import prepare
from weft.runtime.memory import located
from weft.runtime.world import World

RANKS = 2
SETS = tuple(16 << 10 << shift for shift in (0, 2, 4, 6, 8, 9, 10, 11, 12, 14))  # 16 KiB to 256 MiB
STORES = ("cached", "streamed")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int32", "int64", "uint8")
FAR = 1 << 20
_ROUNDS = 5
_LEAST = 2e-3  # seconds of one measurement: enough for the clock
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
    """Give bytes per second that a copy writes, by ``SET STORE alone|both``."""
    pin(world)
    src, dst = world.empty(max(SETS) // 2, "uint8"), world.empty(max(SETS) // 2, "uint8")
    src[:], dst[:] = 1, 0
    here, there = located(src)[0], located(dst)[0]

    def act(nbytes: int, store: str) -> Act:
        return lambda count: time_copies(here, there, nbytes, store == "streamed", count)

    acts = {f"{each} {store}": act(each // 2, store) for each in SETS for store in STORES}
    sizes = {f"{each} {store}": each // 2 for each in SETS for store in STORES}
    return _rates(world, acts, sizes)


def sums(world: World) -> Measured:
    """Give bytes per second that a sum of two writes, by ``SET alone|both`` and by dtype."""
    pin(world)
    room = max(SETS) // 3 // 64 * 64
    places = [located(world.empty(room, "uint8"))[0] for _ in range(3)]
    sizes = {str(each): each // 3 // 64 * 64 for each in SETS}

    def act(dtype: str, nbytes: int) -> Act:
        return lambda count: time_reduces(dtype, *places, nbytes, count)

    acts = {name: act("float32", nbytes) for name, nbytes in sizes.items()}
    acts |= {dtype: act(dtype, FAR // 4) for dtype in DTYPES}
    return _rates(world, acts, sizes | dict.fromkeys(DTYPES, FAR // 4))


def flags(world: World) -> Measured:
    """Give seconds of a flag's way there and back: ``spin`` and ``yield``."""
    pin(world)
    word = world.empty(8, "uint64")
    word[0] = 0
    mine, _ = located(word)
    block = mine - located(world.member.view(world.region(world.rank), 8))[0]
    other = world.region(1 - world.rank) + block
    theirs, _ = located(world.member.view(other, 8))
    count, raised = 2000, 0
    times: dict[str, list[float]] = {"spin": [], "yield": []}
    for _ in range(_ROUNDS):
        for name in times:
            world.barrier()
            first, spins = world.rank == 0, name == "spin"
            seconds = time_round_trips(mine, theirs, raised, first, spins, count)
            raised += count
            times[name].append(seconds / count)
    return {name: median(each) for name, each in times.items()}


def calls(world: World) -> Measured:
    """Give seconds of a prepared collective that moves next to nothing, by its algorithm."""
    pin(world)
    nbytes, count = 64 * world.num_ranks, 200
    names = ("pull", "dma-b2b")
    times: dict[str, list[float]] = {name: [] for name in names}
    ready = [
        prepare(collective("all_gather", name, num_ranks=world.num_ranks, nbytes=nbytes), world)
        for name in names
    ]
    for _ in range(_ROUNDS):
        for name, prepared in zip(names, ready, strict=True):
            world.barrier()
            begin = time.perf_counter()
            for _ in range(count):
                prepared.run()
            times[name].append((time.perf_counter() - begin) / count)
    return {name: median(each) for name, each in times.items()}


def far_reads(world: World) -> Measured:
    """Give bytes per second that a rank reads from ordinary memory of another process."""
    pin(world)
    theirs, mine = np.ones(FAR, np.uint8), np.zeros(FAR, np.uint8)
    shown = world.agree("far", located(theirs)[0].to_bytes(8, "little"))
    if world.stages:
        return {}
    address = int.from_bytes(shown[1 - world.rank], "little")
    pid, dst = world.member.pid(1 - world.rank), located(mine)[0]
    return _rates(
        world, {"far": lambda count: time_reads(pid, address, dst, FAR, count)}, {"far": FAR}
    )


def products(world: World) -> Measured:
    """Give flop/s of products of matrices in one thread, by dtype."""
    pin(world)
    edge = 768
    found: dict[str, list[float]] = {"fp32": [], "fp64": []}
    factors = {"fp32": np.ones((edge, edge), np.float32), "fp64": np.ones((edge, edge))}
    for _ in range(_ROUNDS + 1):
        for name, factor in factors.items():
            begin = time.perf_counter()
            factor @ factor
            found[name].append(2 * edge**3 / (time.perf_counter() - begin))
    return {name: median(each[1:]) for name, each in found.items()}  # the first one warms up


def _rates(world: World, acts: Mapping[str, Act], sizes: Mapping[str, int]) -> Measured:
    """Measure each act on rank 0 alone and on both ranks at once; a rank waits asleep."""
    counts = {name: _count(world, act) for name, act in acts.items()}
    found: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        for name, act in acts.items():
            count = counts[name]
            world.barrier()
            if world.rank == 0:
                seconds = act(count)
                found.setdefault(f"{name} alone", []).append(sizes[name] * count / seconds)
            world.barrier()
            seconds = act(count)
            found.setdefault(f"{name} both", []).append(sizes[name] * count / seconds)
    return {name: median(each) for name, each in found.items()}


def _count(world: World, act: Act) -> int:
    """Choose how often an act is repeated: the same on both ranks; this also warms it up."""
    act(1)
    world.barrier()
    shown = world.agree("seconds", str(act(2) / 2).encode())
    return max(1, int(_LEAST / max(max(float(each) for each in shown), 1e-8)))
