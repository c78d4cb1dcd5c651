"""How long collectives take on this machine, by weft and by its peers."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from weft.bench.exchanges import KINDS, PATHS, Carrier, Exchange, carried_by_weft
from weft.bench.rows import Options, Peer, Row
from weft.errors import UsageError
from weft.runtime import World, spawn

QUESTION = "How long do collectives take on this machine, by weft and by its peers?"
PEERS = ("gloo",)
RANKS = (2, 4)
SIZES = (1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20)
_LONG_ENOUGH = 4e-3  # seconds of one measurement: many calls of a short one


def run(options: Options) -> Iterator[Row]:
    """Measure every collective, size and number of ranks; paths and peers in turn."""
    unknown = [name for name in options.against if name not in PEERS]
    if unknown:
        raise UsageError(f"no peer is called {unknown[0]!r}.", f"Known: {', '.join(PEERS)}.")
    for ranks in options.ranks or RANKS:
        for nbytes in options.sizes or SIZES:
            whole = -(-nbytes // (4 * ranks)) * 4 * ranks  # elements that the ranks can share
            for kind in KINDS:
                yield from _measure(Exchange(kind, whole, ranks), options)


def _measure(exchange: Exchange, options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        results = spawn(
            measure_rank, exchange.num_ranks, exchange, options.against, options.rounds, folder
        )
    names = results[0][0]
    # A collective takes as long as its slowest rank.
    times = {
        name: tuple(max(each) for each in zip(*(r[0][name] for r in results), strict=True))
        for name in names
    }
    wrong = {name: sum(r[1][name] for r in results) for name in names}
    for path in PATHS:
        case = {
            "collective": exchange.kind,
            "algorithm": "auto",
            "ranks": exchange.num_ranks,
            "nbytes": exchange.nbytes,
            "path": path,
        }
        peers = {name: _beside(times[name], times[path]) for name in options.against}
        figures = {"wrong": wrong[path] + sum(wrong[name] for name in options.against)}
        yield Row("collectives", case, times[path], peers, figures)


def _beside(theirs: tuple[float, ...], mine: tuple[float, ...]) -> Peer:
    ratios = [their / my for their, my in zip(theirs, mine, strict=True)]
    return Peer(median(theirs), median(ratios))


def measure_rank(
    world: World, exchange: Exchange, against: tuple[str, ...], rounds: int, folder: str
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Measure on one rank: seconds of every round, and wrong elements, by contestant."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[world.rank % len(cores)]})
    with _contestants(world, exchange, against, folder) as contestants:
        wrong = {name: each.wrong(exchange, world.rank) for name, each in contestants.items()}
        calls = {name: _calls_of(world, each) for name, each in contestants.items()}
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, each in contestants.items():
                times[name].append(_timed(world, each, calls[name]))
    return times, wrong


@contextmanager
def _contestants(
    world: World, exchange: Exchange, against: tuple[str, ...], folder: str
) -> Iterator[dict[str, Carrier]]:
    made = {path: carried_by_weft(world, exchange, path) for path in PATHS}
    if "gloo" not in against:
        yield made
        return
    from weft.bench import torch_gloo  # the one peer that needs torch

    torch_gloo.start(folder, world.rank, world.num_ranks)
    yield {**made, "gloo": torch_gloo.carried_by_gloo(exchange, world.rank)}
    torch_gloo.stop()


def _calls_of(world: World, carrier: Carrier) -> int:
    """Choose how many calls are measured at once: the same number on every rank."""
    calls = 1
    while (seconds := _slowest(world, _timed(world, carrier, calls) * calls)) < _LONG_ENOUGH:
        calls *= max(2, min(16, int(_LONG_ENOUGH / max(seconds, 1e-9))))
    return calls


def _slowest(world: World, seconds: float) -> float:
    shown = world.agree("seconds", str(seconds).encode())
    return max(float(each) for each in shown)


def _timed(world: World, carrier: Carrier, calls: int) -> float:
    act = carrier.act
    world.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        act()
    return (time.perf_counter() - begin) / calls
