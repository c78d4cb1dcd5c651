"""Microbenchmarks of this machine on two ranks: copies, sums, flags, calls and matmuls.

Whatever is compared is measured alternately, round by round, so that noise affects all of it alike.
Results are medians, of pieces of some microseconds inside a round and of the rounds: preemption by
other processes, for milliseconds at a time, does not change the first of them.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft._core import time_copies, time_reads, time_reduces, time_round_trips
from weft.collectives import collective
from weft.compress import codec_of
from weft.hardware.measured import CodecRate
from weft.runtime.bound_memory import address_and_size
from weft.runtime.prepared_schedule import prepare
from weft.runtime.world import World

RANKS = 2
SETS = tuple(16 << 10 << shift for shift in (0, 2, 4, 6, 8, 9, 10, 11, 12, 13))  # to 128 MiB
STORES = ("cached", "streamed")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int32", "int64", "uint8")
CALLS = ("pull", "dma-b2b")
ALGORITHMS = ("eager", "staged")
ALGORITHM_KINDS = ("all_gather", "all_reduce")
ALGORITHM_SIZES = tuple(8 << 10 << shift for shift in range(8))  # to 1 MiB
REMOTE_READ_BYTES = 1 << 20
EDGE = 384  # of matrices: large enough for full speed, a millisecond or two
_ROUNDS = 5
_FEW_FLAGS, _MANY_FLAGS, _FLAG_SECONDS = 20, 2000, 0.01
_MANY_WAYS, _WAY_SECONDS = 10, 0.004
_BATCHES = 25
_BATCH_SECONDS = 0.001  # long enough for the clock, less than a turn of another thread
_MOST_IN_A_BATCH = 200
_LEAST = 2e-3  # seconds of one measurement: a hundred pieces
_UNDISTURBED = 0.95  # of the time on the core
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Measured = dict[str, float]
Act = Callable[[int], float]  # does it so many times and gives the seconds of one


@contextmanager
def changed(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def one_thread() -> AbstractContextManager[None]:
    """Make processes that are started inside use one BLAS thread."""
    return changed(dict.fromkeys(_ONE_THREAD, "1"))


def pin(world: World) -> None:
    """Pin every rank to a core of its own, if there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[world.rank % len(cores)]})


def copies(world: World) -> Measured:
    """Measure the seconds per byte of a copy, by ``SET STORE alone|both``."""
    pin(world)
    src, dst = world.empty(max(SETS) // 2, "uint8"), world.empty(max(SETS) // 2, "uint8")
    src[:], dst[:] = 1, 0
    here, there = address_and_size(src)[0], address_and_size(dst)[0]

    def act(nbytes: int, store: str) -> Act:
        return lambda count: time_copies(here, there, nbytes, store == "streamed", count)

    acts = {f"{each} {store}": act(each // 2, store) for each in SETS for store in STORES}
    sizes = {f"{each} {store}": each // 2 for each in SETS for store in STORES}
    return _seconds(world, acts, sizes)


def sums(world: World) -> Measured:
    """Measure the seconds per byte of a sum of two arrays, by ``SET alone|both`` and dtype."""
    pin(world)
    room = max(SETS) // 3 // 64 * 64
    a, b, out = (address_and_size(world.empty(room, "uint8"))[0] for _ in range(3))
    sizes = {str(each): each // 3 // 64 * 64 for each in SETS}

    def act(dtype: str, nbytes: int) -> Act:
        return lambda count: time_reduces(dtype, a, b, out, nbytes, count)

    acts = {name: act("float32", nbytes) for name, nbytes in sizes.items()}
    acts |= {dtype: act(dtype, REMOTE_READ_BYTES // 4) for dtype in DTYPES}
    return _seconds(world, acts, sizes | dict.fromkeys(DTYPES, REMOTE_READ_BYTES // 4))


def flags(world: World) -> Measured:
    """Measure the round trip of a flag in seconds: ``spin`` and ``yield``."""
    pin(world)
    word = world.empty(8, "uint64")
    word[0] = 0
    mine, _ = address_and_size(word)
    block = mine - address_and_size(world.member.view(world.region(world.rank), 8))[0]
    theirs, _ = address_and_size(world.member.view(world.region(1 - world.rank) + block, 8))
    raised, first = 0, world.rank == 0
    found: dict[str, list[float]] = {}
    for name in ("spin", "yield"):
        count = _FEW_FLAGS
        for turn in range(_ROUNDS + 1):
            world.barrier()
            each = time_round_trips(mine, theirs, raised, first, name == "spin", count)
            raised += count
            found.setdefault(name, []).append(each)
            if turn == 0:  # where others have the cores a yield takes a thousand times as long
                count = max(_FEW_FLAGS, _agreed_count(world, each, _FLAG_SECONDS, _MANY_FLAGS))
    return _best(found)


def calls(world: World) -> Measured:
    """Measure the seconds of a prepared collective of a few bytes, by algorithm."""
    pin(world)
    n = world.num_ranks
    ready = {
        name: prepare(collective("all_gather", name, num_ranks=n, nbytes=64 * n), world)
        for name in CALLS
    }
    return {name: typical(batches(world, prepared.run)) for name, prepared in ready.items()}


def algorithms(world: World) -> Measured:
    """Measure the seconds of a call on ordinary memory, by ``COLLECTIVE BYTES ALGORITHM``.

    Bytes are a rank's input. An all_gather moves them, an all_reduce joins them.
    """
    pin(world)
    acts = {
        f"{kind} {nbytes} {algorithm}": _call_of(world, kind, nbytes, algorithm)
        for kind in ALGORITHM_KINDS
        for nbytes in ALGORITHM_SIZES
        for algorithm in ALGORITHMS
    }
    for act in acts.values():
        act()  # the first one prepares
    once = max(_seconds_of(act, 4) for act in acts.values())
    count = _agreed_count(world, once, _WAY_SECONDS, _MANY_WAYS)
    found: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(_ROUNDS):
        for name, act in acts.items():
            world.barrier()
            found[name].append(median(_seconds_of(act, 4) for _ in range(count)))
    return _best(found)


def _call_of(world: World, kind: str, nbytes: int, algorithm: str) -> Callable[[], Any]:
    x = np.zeros(nbytes // 4, np.float32)
    if kind == "all_reduce":
        return lambda: world.all_reduce(x, algorithm=algorithm)
    out = np.zeros(world.num_ranks * x.size, np.float32)
    return lambda: world.all_gather(out, x, algorithm=algorithm)


def remote_reads(world: World) -> Measured:
    """Measure the seconds per byte of reads from the memory of another process."""
    pin(world)
    theirs, mine = np.ones(REMOTE_READ_BYTES, np.uint8), np.zeros(REMOTE_READ_BYTES, np.uint8)
    shown = world.agree("far", address_and_size(theirs)[0].to_bytes(8, "little"))
    if world.stages:
        return {}
    address = int.from_bytes(shown[1 - world.rank], "little")
    pid, dst = world.member.pid(1 - world.rank), address_and_size(mine)[0]
    act: Act = lambda count: time_reads(pid, address, dst, REMOTE_READ_BYTES, count)  # noqa: E731
    found = _seconds(world, {"far": act}, {"far": REMOTE_READ_BYTES})
    world.barrier()  # the other one still reads
    return found


def matmuls(world: World) -> Measured:
    """Measure the seconds per flop of matmuls in one thread, by dtype; on rank 0 alone."""
    pin(world)
    factors: dict[str, NDArray[Any]] = {
        "fp32": np.ones((EDGE, EDGE), np.float32),
        "fp64": np.ones((EDGE, EDGE)),
    }
    found: dict[str, list[float]] = {name: [] for name in factors}
    for _ in range(_ROUNDS * (world.rank == 0)):
        for name, factor in factors.items():
            seconds = [_seconds_of(partial(np.matmul, factor, factor), 1) for _ in range(12)]
            found[name].append(median(seconds) / (2 * EDGE**3))
    world.barrier()
    return _best(found)


def _seconds_of(act: Callable[[], Any], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        act()
    return (time.perf_counter() - begin) / count


def _best(found: Mapping[str, Sequence[float]]) -> Measured:
    """Return the median of the best round: other ranks can only delay one."""
    return {name: min(each) for name, each in found.items() if each}


class Round(NamedTuple):
    """How much of the time the thread was on its core, and the seconds of one of its acts."""

    share: float
    seconds: float


def typical(rounds: Sequence[Round]) -> float:
    """Return the median of the undisturbed rounds, or the best of all if those are few."""
    quiet = [each.seconds for each in rounds if each.share >= _UNDISTURBED]
    few = len(quiet) * 3 < len(rounds)
    return min(each.seconds for each in rounds) if few else median(quiet)


def slowest(by_rank: Iterable[Sequence[Round]]) -> list[Round]:
    """Merge the ranks' views of the same rounds: the longest time and the smallest share."""
    together = zip(*by_rank, strict=True)
    return [Round(min(r.share for r in of), max(r.seconds for r in of)) for of in together]


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


def batches(world: World, act: Callable[[], Any]) -> list[Round]:
    """Time batches of a collective act, as nccl-tests does; seconds of one in each."""
    once = min(each.seconds for each in _timed(world, act, 1, 3))
    count = _agreed_count(world, once, _BATCH_SECONDS, _MOST_IN_A_BATCH)
    return _timed(world, act, count, _BATCHES)


def _agreed_count(world: World, once: float, seconds: float, most: int) -> int:
    """Return how often to repeat something in so many seconds; rank 0 decides."""
    shown = world.agree("how often", str(once).encode())
    return int(min(max(seconds / max(float(shown[0]), 1e-9), 1), most))


def _timed(world: World, act: Callable[[], Any], count: int, most: int) -> list[Round]:
    found = Rounds()
    for _ in range(most):
        world.barrier()
        with found.timed("batch", count):
            for _ in range(count):
                act()
    return found.found["batch"]


def _seconds(world: World, acts: Mapping[str, Act], sizes: Mapping[str, int]) -> Measured:
    """Measure a byte of each act on rank 0 alone and on both ranks at once; a rank waits asleep.

    Acts are interleaved and take the caches from each other, so each comes once uncounted: a
    collective that is repeated finds there what it left.
    """
    counts = {name: _count(world, act) for name, act in acts.items()}
    found: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        for name, act in acts.items():
            world.barrier()
            if world.rank == 0:
                act(1)
                found.setdefault(f"{name} alone", []).append(act(counts[name]) / sizes[name])
            world.barrier()
            act(1)
            found.setdefault(f"{name} both", []).append(act(counts[name]) / sizes[name])
    return {name: median(each) for name, each in found.items()}


def _count(world: World, act: Act) -> int:
    """Choose how often an act is repeated: the same on both ranks; this also warms it up."""
    act(1)
    world.barrier()
    shown = world.agree("seconds", str(act(1)).encode())
    return max(1, int(_LEAST / max(1e-8, *(float(each) for each in shown))))


CODECS = ("pack", "bf16", "fp16", "int8")
_CHUNK = 256 << 10  # what is encoded at once
_CHUNKS = 16
_SPREAD = 0.02  # of weights, as layers of a transformer have it


def codec_rates() -> tuple[CodecRate, ...]:
    """Encode and decode weights chunk by chunk."""
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal(_CHUNK * _CHUNKS // 4) * _SPREAD).astype(np.float32)
    chunks = weights.view(np.uint8).reshape(_CHUNKS, _CHUNK)
    return tuple(_rate(name, chunks) for name in CODECS)


def _rate(name: str, chunks: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]") -> CodecRate:
    codec = codec_of(name, "float32")
    frame, back = np.empty(codec.room(_CHUNK), np.uint8), np.empty(_CHUNK, np.uint8)
    encode, decode, total = [], [], 0
    for chunk in chunks:
        begin = time.perf_counter()
        size = codec.encode(chunk, frame)
        middle = time.perf_counter()
        codec.decode(frame[:size], back)
        encode.append(middle - begin)
        decode.append(time.perf_counter() - middle)
        total += size
    fast, back_fast = (float(f"{_CHUNK / median(each):.4g}") for each in (encode, decode))
    return CodecRate(name, "float32", fast, back_fast, float(f"{chunks.nbytes / total:.4g}"))
