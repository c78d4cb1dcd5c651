"""Measures a GEMM and a collective on this machine: alone, in sequence, and overlapped.

Rank 0 multiplies in its calling thread while its worker and engines communicate with rank 1, which
does nothing else. A strategy determines the cores of those threads and the mover of the bytes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft._core import time_copies
from weft.c3.scenarios import class_of, percent_of_ideal
from weft.calibration.microbenchmarks import one_thread
from weft.collectives import collective
from weft.collectives.catalogue import BUILDERS
from weft.errors import UsageError
from weft.runtime import Engines, World, prepare, spawn
from weft.runtime.bound_memory import address_and_size
from weft.runtime.engine_threads import allowed_cores
from weft.runtime.work import Work

SIZE = 8 << 20
KINDS = ("all_gather", "all_to_all", "all_reduce", "broadcast")
STRATEGIES = ("concurrent", "priority", "partition", "dma")
RATIOS = (0.5, 1.0, 2.0)
EDGE = 256  # of the matrices: below a millisecond, so that a case can be sized finely
BY_ENGINES = "dma-b2b+prelaunch"
NICE = 10
_LONG = 0.005  # seconds of communication of a case, many times its launch overhead
_PRODUCTS = 8
_STREAM = 32 << 20  # bytes of the copy that the other core repeats: larger than any cache
_TIMEOUT = 120.0

Start = Callable[[], Work | None]


@dataclass(frozen=True, slots=True)
class OverlapCase:
    """A collective of a size, and its duration relative to the GEMM."""

    kind: str
    nbytes: int
    ratio: float


class OverlapTimes(NamedTuple):
    """Seconds of one round: each alone, in sequence, overlapped."""

    compute: float
    comm: float
    serial: float
    both: float


@dataclass(frozen=True, slots=True)
class OverlapOutcome:
    """The result of one case under one strategy on rank 0; the best round of each figure counts.

    Other processes can only add to a time, so the best of many rounds is closest to an idle
    machine.
    """

    case: OverlapCase
    strategy: str
    rounds: tuple[OverlapTimes, ...]
    num_calls: int
    num_products: int
    slowdown: float  # of the GEMM while the other core copies

    @property
    def best(self) -> OverlapTimes:
        """The minimum of each time."""
        return OverlapTimes(*(min(each) for each in zip(*self.rounds, strict=True)))

    @property
    def ideal(self) -> float:
        """The longer of the two: the shorter one fully overlapped."""
        return max(self.best.compute, self.best.comm)

    @property
    def percent(self) -> float:
        """The percentage of the possible gain: 0 is sequential, 100 is ideal."""
        best = self.best
        return percent_of_ideal(best.compute + best.comm, self.ideal, best.both)

    @property
    def bound(self) -> float:
        """The percent of ideal that memory bandwidth shared with a copying core allows."""
        best = self.best
        slowed = best.compute + best.comm * (1 - 1 / max(self.slowdown, 1.0))
        return percent_of_ideal(best.compute + best.comm, self.ideal, max(best.comm, slowed))


def placement(strategy: str, rank: int) -> Engines:
    """Return the cores of a rank's threads: the first core computes, the second communicates."""
    first, *others = sorted(allowed_cores())
    second = others[0] if others else first
    match strategy:
        case "concurrent":
            return Engines()
        case "priority":
            return Engines(nice=NICE)
        case _ if rank == 0:
            return Engines(cores={second}, caller={first})
        case _:
            return Engines(cores={second}, caller={second})


def applies(strategy: str, kind: str) -> bool:
    """Return whether engines alone can execute a collective: they copy and do not reduce."""
    return strategy != "dma" or BY_ENGINES in BUILDERS[kind]


def measure(
    kind: str, nbytes: int, ratios: Sequence[float], num_ranks: int, rounds: int
) -> list[OverlapOutcome]:
    """Measure a collective at every ratio with every strategy, alternating in every round."""
    if kind not in KINDS:
        raise UsageError(f"kind: {kind} cannot be measured.", f"Use one of {', '.join(KINDS)}.")
    if num_ranks < 2:
        raise UsageError(f"num_ranks: a collective needs at least 2 ranks (got {num_ranks}).")
    if nbytes < 1:
        raise UsageError("nbytes must be > 0 (got 0).", "Use 1KiB or more.")
    whole = -(-nbytes // (64 * num_ranks)) * 64 * num_ranks  # a multiple that the ranks divide
    cases = [OverlapCase(kind, whole, ratio) for ratio in ratios]
    with one_thread():
        return spawn(rank_main, num_ranks, cases, rounds, timeout=_TIMEOUT)[0]


def rank_main(world: World, cases: list[OverlapCase], rounds: int) -> list[OverlapOutcome]:
    """Measure the cases of one collective as one rank; rank 0 returns the times."""
    factor = np.ones((EDGE, EDGE), np.float32)
    kind = cases[0].kind
    names = [name for name in STRATEGIES if applies(name, kind)]
    starts = {name: _starter(world, cases[0], name) for name in names}
    once = {name: _once(world, name, starts[name]) for name in names}
    product = _slowest_of(world, _best(world, lambda: _multiply(factor, 1)))
    sizes = {
        (case, name): _size(once[name], product, case.ratio) for case in cases for name in names
    }
    found: dict[tuple[OverlapCase, str], list[OverlapTimes]] = {each: [] for each in sizes}
    for _ in range(rounds):
        for name in names:
            world.set_engines(placement(name, world.rank))
            for case in cases:
                calls, products = sizes[case, name]
                times = _round(world, starts[name], calls, factor, products)
                found[case, name].append(times)
    slowdown = _slowdown(world, factor)
    return [
        OverlapOutcome(case, name, tuple(times), *sizes[case, name], slowdown)
        for (case, name), times in found.items()
    ]


def _once(world: World, strategy: str, start: Start) -> float:
    """Return the seconds of one collective with a strategy; the first call prepares it."""
    world.set_engines(placement(strategy, world.rank))
    _communicate(start, 1)
    return _slowest_of(world, _best(world, lambda: _communicate(start, 1)))


def _size(once: float, product: float, ratio: float) -> tuple[int, int]:
    """Return how many collectives and GEMMs make up a case; few if they are long."""
    calls = max(1, round(_LONG / once))
    products = max(1, round(calls * once / ratio / product))
    return calls, products


def _best(world: World, act: Callable[[], None], times: int = 9) -> float:
    return min(_timed(world, act) for _ in range(times))


def _starter(world: World, case: OverlapCase, strategy: str) -> Start:
    """Return a function that starts one collective in the background, on heap memory."""
    nbytes, n = case.nbytes, world.num_ranks
    if strategy == "dma":
        schedule = collective(case.kind, BY_ENGINES, num_ranks=n, nbytes=nbytes)
        prepared = prepare(schedule, world)

        def start() -> Work:
            job = prepared.submit([], schedule.name)
            return Work(world, job, schedule.name, lambda _: schedule.name, None)

        return start
    if case.kind in ("all_reduce", "broadcast"):
        data, act = world.empty(nbytes // 4), getattr(world, case.kind)
        data[:] = 0
        return lambda: act(data, async_op=True)
    shared = n if case.kind == "all_gather" else 1
    x, out = world.empty(nbytes // 4 // shared), world.empty(nbytes // 4)
    x[:], act = 1, getattr(world, case.kind)
    return lambda: act(out, x, async_op=True)


def _round(
    world: World, start: Start, calls: int, factor: NDArray[Any], products: int
) -> OverlapTimes:
    """Return the times of one round; only rank 0 multiplies."""
    mine = products if world.rank == 0 else 0

    def both() -> None:
        works = [start() for _ in range(calls)]
        _multiply(factor, mine)
        _wait(works)

    def serial() -> None:
        _communicate(start, calls)
        _multiply(factor, mine)

    acts = (lambda: _multiply(factor, mine), lambda: _communicate(start, calls), serial, both)
    return OverlapTimes(*(_timed(world, act) for act in acts))


def _multiply(factor: NDArray[Any], count: int) -> None:
    for _ in range(count):
        factor @ factor


def _communicate(start: Start, calls: int) -> None:
    _wait([start() for _ in range(calls)])


def _wait(works: list[Work | None]) -> None:
    for work in works:
        assert work is not None
        work.wait()


def _timed(world: World, act: Callable[[], None]) -> float:
    world.barrier()
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def _slowest_of(world: World, seconds: float) -> float:
    """Broadcast a time measured by rank 0."""
    return float(world.agree("seconds", str(seconds).encode())[0])


def _slowdown(world: World, factor: NDArray[Any]) -> float:
    """Return how much longer GEMMs take while the second core copies."""
    world.set_engines(placement("partition", world.rank))
    stop = world.empty(8, "uint8")
    stop[:] = 0
    mine = _PRODUCTS if world.rank == 0 else 0
    alone, overlapped = [], []
    for turn in range(9):
        alone.append(_timed(world, lambda: _multiply(factor, mine)))
        world.barrier()
        overlapped.append(_next_to_a_stream(world, factor, mine, stop, turn + 1))
    return min(overlapped) / min(alone)


def _next_to_a_stream(
    world: World, factor: NDArray[Any], products: int, stop: NDArray[Any], turn: int
) -> float:
    """Multiply on rank 0; rank 1 copies until rank 0 has finished."""
    flag = of_first(world, stop)
    seconds = 0.0
    if world.rank == 0:
        begin = time.perf_counter()
        _multiply(factor, products)
        seconds = time.perf_counter() - begin
        flag[0] = turn
    elif world.rank == 1:
        src, dst = (np.ones(_STREAM // 2, np.uint8) for _ in range(2))
        deadline = time.monotonic() + _TIMEOUT
        while flag[0] < turn and time.monotonic() < deadline:
            time_copies(
                address_and_size(src)[0], address_and_size(dst)[0], len(src), streamed=True, count=1
            )
    world.barrier()
    return seconds


def of_first(world: World, array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of rank 0 at the heap address of this rank's array."""
    here = address_and_size(world.member.view(world.region(world.rank), 1))[0]
    return world.member.view(world.region(0) + address_and_size(array)[0] - here, array.nbytes)


def figures(outcome: OverlapOutcome) -> dict[str, Any]:
    """Return the figures of a c3 result besides its time; percent from 0 to 100."""
    best = outcome.best
    return {
        "t_compute": best.compute,
        "t_comm": best.comm,
        "serial": best.serial,
        "ideal": outcome.ideal,
        "speedup": (best.compute + best.comm) / best.both,
        "percent_of_ideal": outcome.percent,
        "bound": outcome.bound,
        "gemm_beside_copies": outcome.slowdown,
        "best": best.both,
        "calls": outcome.num_calls,
        "products": outcome.num_products,
        "class": class_of(best.compute, best.comm),
    }
