"""Finds the ranks that others wait for, and why they are late.

In every collective, the rank that arrives last costs each other rank the time between their
arrivals. Since the previous collective, the late rank was either busy or idle for longer than the
others: it computed more, or its host launched late.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Protocol

import numpy as np

from weft.trace.analysis.align import AlignedJob, CollectiveMatch
from weft.trace.analysis.analysis_result import Straggler
from weft.trace.trace import Floats
from weft.units import format_time

_WORTH = 0.05  # fraction of the waiting of all ranks: less is no straggler


class BusyTime(Protocol):
    """When a rank was busy: an IntervalSet, or what is known of one."""

    def within(self, start: Floats, end: Floats) -> Floats:
        """Return the busy seconds inside each interval."""


def stragglers(job: AlignedJob, busy: Sequence[BusyTime]) -> tuple[Straggler, ...]:
    """Return the ranks that cost the others most, the worst first."""
    cost: dict[int, float] = defaultdict(float)
    times: dict[int, int] = defaultdict(int)
    extra: dict[int, list[tuple[float, float]]] = defaultdict(list)
    before: dict[int, float] = {}
    ordered = sorted(job.matches, key=lambda match: float(job.starts(match).max()))
    for match in ordered:
        starts = job.starts(match)
        if np.ptp(starts) <= job.uncertainty(match):
            continue  # the clocks are too inaccurate to tell who was last
        last = match.members[int(starts.argmax())][0]
        cost[last] += float((starts.max() - starts).sum())
        times[last] += 1
        extra[last].append(_extra(match, starts, busy, before, last))
        ends = job.ends(match).tolist()
        before |= {n: end for (n, _), end in zip(match.members, ends, strict=True)}
    total = sum(cost.values())
    found = sorted(cost, key=lambda n: -cost[n])
    return tuple(
        Straggler(_rank(job, n), times[n], len(ordered), cost[n], _why(extra[n]))
        for n in found
        if cost[n] > _WORTH * total
    )


def _rank(job: AlignedJob, number: int) -> int:
    rank = job.ranks[number].trace.rank
    return number if rank is None else rank


def _extra(
    match: CollectiveMatch,
    starts: Floats,
    busy: Sequence[BusyTime],
    before: dict[int, float],
    last: int,
) -> tuple[float, float]:
    """Return how much longer the late rank was busy and idle than the others since then."""
    times = {}
    for (number, _), start in zip(match.members, starts.tolist(), strict=True):
        begin = before.get(number, start)
        worked = float(busy[number].within(np.array([begin]), np.array([start]))[0])
        times[number] = (worked, max(start - begin - worked, 0.0))
    others = [each for number, each in times.items() if number != last]
    if not others:
        return 0.0, 0.0
    mine = times[last]
    return mine[0] - median(o[0] for o in others), mine[1] - median(o[1] for o in others)


def _why(extra: Sequence[tuple[float, float]]) -> str:
    worked, idle = (sum(each[i] for each in extra) for i in (0, 1))
    if max(worked, idle) <= 0:
        return "it was already late when the traces begin"
    if worked > idle:
        return f"its kernels took {format_time(worked)} longer than those of the others"
    return f"its GPU was idle {format_time(idle)} longer: its host launched late"
