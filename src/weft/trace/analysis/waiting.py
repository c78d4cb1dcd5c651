"""Splits collective kernels into waiting for other ranks and moving bytes.

A collective kernel begins when its rank arrives and ends when all are done. Seen on several ranks,
bytes move from the last start to the first end. With one rank, the transfer is estimated as the
time the link needs, or as the shortest of equal collectives in the file, whichever is less, and
placed at the end. A collective of unknown size is assumed to move for the same fraction of its time
as the others.

If the clocks of ranks differ by more than the transfer time, neither is known.

Stragglers are the ranks that others wait for. In every collective, the rank that arrives last costs
each other rank the time between their arrivals. Since the previous collective, it was either busy
or idle for longer than the others: it computed more, or its host launched late.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np

from weft.trace.analysis.align import AlignedJob, CollectiveMatch, RankTrace
from weft.trace.analysis.analysis_result import ESTIMATED, MEASURED, Straggler
from weft.trace.analysis.machine_links import MachineLinks
from weft.trace.analysis.steps import TraceSteps, step_by_row
from weft.trace.trace import Floats
from weft.units import format_time

_SMALL = 0.1  # fraction of the longest kernel of a collective: a smaller uncertainty is negligible
_ENOUGH = 3  # equal collectives needed for the shortest of them to be meaningful


@dataclass(frozen=True, slots=True)
class TransferWindow:
    """When the bytes of a collective moved."""

    start: float
    end: float
    basis: str
    last_rank: int | None = None

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return max(self.end - self.start, 0.0)


def moving(
    job: AlignedJob, steps: Sequence[TraceSteps], links: MachineLinks
) -> list[list[TransferWindow | None]]:
    """Return for each rank and each of its collectives when bytes moved; None if unknown."""
    out = [_estimated(ranked, each, links) for ranked, each in zip(job.ranks, steps, strict=True)]
    for match in job.matches:
        moves = measured(job, match)
        for number, index in match.members:
            out[number][index] = moves
    return out


def measured(job: AlignedJob, match: CollectiveMatch) -> TransferWindow | None:
    """Return when bytes moved between ranks; None if their clocks are too inaccurate."""
    starts, ends = job.starts(match), job.ends(match)
    last = match.members[int(np.argmax(starts))][0]
    # Bytes can move from when the last rank has come until the first one is done.
    moves = TransferWindow(
        float(starts.max()), float(ends.min()), MEASURED, job.ranks[last].trace.rank
    )
    longest = float((ends - starts).max())
    if longest <= 0:  # kernels of zero length: nothing waited, nothing moved
        return moves
    doubt = job.uncertainty(match)
    # Shorter than the clocks are accurate, and that matters for this collective.
    if moves.seconds <= 0 or (moves.seconds <= doubt and doubt > _SMALL * longest):
        return None
    return moves


def _estimated(
    ranked: RankTrace, steps: TraceSteps, links: MachineLinks
) -> list[TransferWindow | None]:
    names = _classes(ranked, steps)
    everyone = range(len(names))
    ends = ranked.ends(everyone).tolist()
    own = (ranked.ends(everyone) - ranked.starts(everyone)).tolist()
    shortest = _shortest(own, names)
    found = [
        _least(
            links.seconds(c.kind, c.nbytes, c.num_ranks, c.dtype, c.ranks),
            shortest.get(name),
            seconds,
        )
        for c, name, seconds in zip(ranked.collectives, names, own, strict=True)
    ]
    # The fraction of known collectives that moves: the estimate for unknown sizes.
    known = [(f, o) for f, o in zip(found, own, strict=True) if f is not None]
    total = sum(o for _, o in known)
    typical = sum(f for f, _ in known) / total if total else None
    out: list[TransferWindow | None] = []
    for index, seconds in enumerate(found):
        guess = typical * own[index] if seconds is None and typical is not None else seconds
        end = ends[index]
        # One rank sees its own start only: waiting comes first, so bytes move at the end.
        out.append(None if guess is None else TransferWindow(end - guess, end, ESTIMATED))
    return out


def _least(on_links: float | None, shortest: float | None, own: float) -> float | None:
    """Return the smallest known estimate; its own duration alone tells nothing."""
    known = [seconds for seconds in (on_links, shortest) if seconds is not None]
    return min(*known, own) if known else None


def _classes(ranked: RankTrace, steps: TraceSteps) -> list[tuple[object, ...]]:
    """Return equivalence keys: kind and size, or without a size the place in the step."""
    step_of = step_by_row(ranked.trace, steps)
    seen: Counter[int] = Counter()
    out: list[tuple[object, ...]] = []
    for c in ranked.collectives:
        step = int(step_of[c.row])
        seen[step] += 1
        if c.nbytes is not None:
            out.append((c.kind, c.nbytes, c.group, c.ranks))
        else:
            out.append((c.kind, "place", seen[step]) if step >= 0 else ())
    return out


def _shortest(
    own: Sequence[float], names: Sequence[tuple[object, ...]]
) -> dict[tuple[object, ...], float]:
    """Return the shortest of equal collectives: an upper bound of their transfer time."""
    times: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for seconds, name in zip(own, names, strict=True):
        if name:
            times[name].append(seconds)
    return {name: min(each) for name, each in times.items() if len(each) >= _ENOUGH}


def basis_of(found: Sequence[TransferWindow | None]) -> str:
    """Return the basis of a rank's waiting time."""
    bases = {each.basis for each in found if each is not None}
    if not found:
        return MEASURED
    if not bases:
        return "unknown"
    return ESTIMATED if ESTIMATED in bases or None in found else MEASURED


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
    took = Counter(number for match in job.matches for number, _ in match.members)
    ordered = sorted(job.matches, key=lambda match: float(job.starts(match).max()))
    for match in ordered:
        starts = job.starts(match)
        if np.ptp(starts) <= job.uncertainty(match):
            continue  # the clocks are too inaccurate to tell which rank was last
        last = match.members[int(starts.argmax())][0]
        cost[last] += float((starts.max() - starts).sum())
        times[last] += 1
        extra[last].append(_extra(match, starts, busy, before, last))
        ends = job.ends(match).tolist()
        before |= {n: end for (n, _), end in zip(match.members, ends, strict=True)}
    total = sum(cost.values())
    found = sorted(cost, key=lambda n: -cost[n])
    return tuple(
        Straggler(_rank(job, n), times[n], took[n], cost[n], _why(extra[n]))
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
        begin = min(before.get(number, start), start)  # the one before may still run
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
