"""One schedule, two interpreters: run leaves the right bytes, and both keep the same order.

For every builder: real processes end with what the collective promises, and simulate and run
give the same command ids in the same order on each queue and lane of each rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest

from benchmarks.uneven_all_to_all import uneven_all_to_all
from tests.collective_values import expected, inputs
from weft.c3.strategies import ENGINES
from weft.collectives import KINDS, algorithms, collective
from weft.hardware import platform
from weft.runtime import World, run, spawn
from weft.schedule import CommandKind, Schedule, expand
from weft.simulator import simulate
from weft.timeline import Timeline

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]

BYTES = 1200  # of each rank
ROOT = 0
SIZES = ((5, 70, 0, 1300), (64, 3, 801, 7), (0, 0, 0, 0), (9, 1, 4096, 2))


def cases(num_ranks: int) -> dict[str, tuple[str, Schedule]]:
    """What is built for so many ranks: kind and schedule by name."""
    found = {
        f"{kind} {algorithm}": (kind, build(kind, algorithm, num_ranks))
        for kind in KINDS
        for algorithm in algorithms(kind)
        if applies(kind, algorithm, num_ranks)
    }
    for kind, engines in ENGINES.items():
        found[f"{kind} engines"] = (kind, engines(num_ranks, BYTES * num_ranks))
    for algorithm in ("chain+pack", "p2p+pack", "chain+blosc2"):
        found[f"broadcast {algorithm}"] = ("broadcast", build("broadcast", algorithm, num_ranks))
    sizes = [row[:num_ranks] for row in SIZES[:num_ranks]]
    for queue in ("stream0", "copy0", "nic0"):
        uneven = uneven_all_to_all(sizes, queue=queue)
        found[f"uneven all_to_all {queue}"] = ("uneven", uneven)
    return found


def applies(kind: str, algorithm: str, num_ranks: int) -> bool:
    if algorithm == "hierarchical":
        return num_ranks == 4
    return algorithm != "halving-doubling" or kind == "all_reduce" or num_ranks != 3


def build(kind: str, algorithm: str, num_ranks: int) -> Schedule:
    node_size = 2 if algorithm == "hierarchical" else None
    nbytes = BYTES * num_ranks
    return collective(kind, algorithm, num_ranks=num_ranks, nbytes=nbytes, node_size=node_size)


def filled(kind: str, schedule: Schedule) -> dict[tuple[int, str], np.ndarray]:
    return inputs(kind, schedule, seed=len(schedule.name), root=ROOT)


def run_all(world: World) -> dict[str, tuple[dict[str, np.ndarray], Timeline]]:
    """Each schedule once: what is in this rank's buffers then, and everyone's spans."""
    results = {}
    for name, (kind, schedule) in cases(world.num_ranks).items():
        given = filled(kind, schedule)
        data = {
            b.name: given.get((world.rank, b.name), np.zeros(b.size_on(world.rank), np.uint8))
            for b in schedule.buffers
            if b.role != "scratch"
        }
        results[name] = (data, run(schedule, world, data))
    return results


@lru_cache
def executed(num_ranks: int) -> list[dict[str, tuple[dict[str, np.ndarray], Timeline]]]:
    """One world for all schedules of so many ranks: starting it costs more than they do."""
    return spawn(run_all, num_ranks, timeout=20)


EVERY_CASE = [(num_ranks, name) for num_ranks in (2, 3, 4) for name in cases(num_ranks)]


def delivered(
    schedule: Schedule, data: dict[tuple[int, str], np.ndarray]
) -> Iterator[tuple[tuple[int, str], np.ndarray]]:
    """What an uneven all-to-all must leave behind."""
    n = schedule.num_ranks
    sizes = np.array([row[:n] for row in SIZES[:n]])
    for j in range(n):
        starts = sizes[:, :j].sum(axis=1)
        parts = [data[i, "in"][starts[i] : starts[i] + sizes[i, j]] for i in range(n)]
        yield (j, "out"), np.concatenate(parts)


@pytest.mark.parametrize(("num_ranks", "name"), EVERY_CASE)
def test_processes_end_with_what_the_collective_promises(num_ranks, name):
    kind, schedule = cases(num_ranks)[name]
    data = filled(kind, schedule)
    if kind == "uneven":
        wanted = dict(delivered(schedule, data))
    else:
        wanted = expected(kind, schedule, data, ROOT)
    results = executed(num_ranks)
    for (rank, buffer), want in wanted.items():
        assert np.array_equal(results[rank][name][0][buffer], want), (rank, buffer)


@pytest.mark.parametrize(("num_ranks", "name"), EVERY_CASE)
def test_simulate_and_run_keep_the_same_order(num_ranks, name):
    _, schedule = cases(num_ranks)[name]
    predicted = simulate(schedule, platform("mi300x-8"), collapse=False)
    measured = executed(num_ranks)[0][name][1]
    assert (predicted.basis, measured.basis) == ("predicted", "measured")
    assert predicted.num_spans == measured.num_spans == expand(schedule).num_rows
    assert order(predicted) == order(measured)


def order(timeline: Timeline) -> dict[tuple[int, str, int], list[int]]:
    """The ids by (rank, queue, lane), as they follow each other in time."""
    threads: dict[tuple[int, str, int], list[tuple[float, float, int]]] = {}
    for span in timeline.spans():
        if span.kind != CommandKind.CALL:  # it lies around others, not between them
            place = (span.rank, span.queue, span.lane)
            threads.setdefault(place, []).append((span.start, span.end, span.id))
    return {place: [ident for _, _, ident in sorted(times)] for place, times in threads.items()}
