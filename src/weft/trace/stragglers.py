"""Which ranks the others wait for, and why they are late.

In every collective the rank that begins last costs each other rank the time from its own begin to
that. Since the collective before, the late rank was either busy for longer than the others, or its
GPU stood idle for longer: it computed more, or its host launched late.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np

from weft.trace.align import Job, Match
from weft.trace.analysis import Straggler
from weft.trace.cover import Cover
from weft.units import format_time

_WORTH = 0.05  # of the waiting of all ranks: less is no straggler


def stragglers(job: Job, busy: Sequence[Cover]) -> tuple[Straggler, ...]:
    """Name the ranks that cost the others most, the worst first."""
    cost: dict[int, float] = defaultdict(float)
    times: dict[int, int] = defaultdict(int)
    extra: dict[int, list[tuple[float, float]]] = defaultdict(list)
    before: dict[int, float] = {}
    ordered = sorted(job.matches, key=lambda m: float(_starts(job, m).max()))
    for match in ordered:
        starts = _starts(job, match)
        last = match.members[int(starts.argmax())][0]
        cost[last] += float((starts.max() - starts).sum())
        times[last] += 1
        extra[last].append(_extra(job, match, busy, before, last))
        before |= {n: _end(job, n, i) for n, i in match.members}
    total = sum(cost.values())
    found = sorted(cost, key=lambda n: -cost[n])
    return tuple(
        Straggler(_rank(job, n), times[n], len(ordered), cost[n], _why(extra[n]))
        for n in found
        if cost[n] > _WORTH * total
    )


def _rank(job: Job, number: int) -> int:
    rank = job.ranks[number].trace.rank
    return number if rank is None else rank


def _starts(job: Job, match: Match) -> np.ndarray:
    rows = [(job.ranks[n], i) for n, i in match.members]
    return np.array([r.trace.columns.start[r.collectives[i].row] for r, i in rows])


def _end(job: Job, number: int, index: int) -> float:
    ranked = job.ranks[number]
    return float(ranked.trace.end[ranked.collectives[index].row])


def _extra(
    job: Job, match: Match, busy: Sequence[Cover], before: dict[int, float], last: int
) -> tuple[float, float]:
    """Give how much longer than the others the late rank was busy, and idle, since the last one."""
    times = {}
    for number, index in match.members:
        ranked = job.ranks[number]
        start = float(ranked.trace.columns.start[ranked.collectives[index].row])
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
