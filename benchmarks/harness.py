"""Measuring: contestants in turn, round by round, so that a noisy machine is noisy for all."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.rows import Row
from weft.local_runs.contest import PeerTiming

Contestant = Callable[[], float | None]
"""Does the work once; gives its seconds if it has a better clock than the one around it."""


def measure(
    bench: str,
    case: Mapping[str, Any],
    weft: Contestant,
    peers: Mapping[str, Contestant] | None = None,
    *,
    rounds: int = 5,
    warmups: int = 1,
    **more: Any,
) -> Row:
    """Measure weft and its peers at the same work in turn: A B A B.

    A ratio is taken inside a round, where the machine was in the same mood for both, and the
    median of these ratios is reported, not the ratio of medians.
    """
    contestants = {"weft": weft, **(peers or {})}
    for _ in range(warmups):
        for work in contestants.values():
            work()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            times[name].append(timed(work))
    mine = times.pop("weft")
    compared = {name: PeerTiming.of(theirs, mine) for name, theirs in times.items()}
    return Row(bench, dict(case), tuple(mine), compared, dict(more))


def timed(work: Contestant) -> float:
    """Return the seconds that the work took."""
    begin = time.perf_counter()
    own = work()
    passed = time.perf_counter() - begin
    return passed if own is None else own
