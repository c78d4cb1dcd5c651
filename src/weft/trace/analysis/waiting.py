"""Splits collective kernels into waiting for other ranks and moving bytes.

A collective kernel begins when its rank arrives and ends when all are done. Seen on several ranks,
bytes move from the last start to the first end. With one rank, the transfer is estimated as the
time the link needs, or as the shortest of equal collectives in the file, whichever is less, and
placed at the end. A collective of unknown size is assumed to move for the same fraction of its time
as the others.

If the clocks of ranks differ by more than the transfer time, neither is known.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.trace.analysis.align import AlignedJob, CollectiveMatch, RankTrace
from weft.trace.analysis.analysis_result import ESTIMATED, MEASURED
from weft.trace.analysis.machine_links import MachineLinks
from weft.trace.analysis.steps import TraceSteps, step_by_row
from weft.trace.trace_collectives import TracedCollective

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
    moves = TransferWindow(
        float(starts.max()), float(ends.min()), MEASURED, job.ranks[last].trace.rank
    )
    longest = float((ends - starts).max())
    if longest <= 0:  # kernels of zero length: nothing waited, nothing moved
        return moves
    doubt = job.uncertainty(match)
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
        _least(_on_links(c, links), shortest.get(name), seconds)
        for c, name, seconds in zip(ranked.collectives, names, own, strict=True)
    ]
    typical = _typical_share(found, own)
    out: list[TransferWindow | None] = []
    for index, seconds in enumerate(found):
        guess = typical * own[index] if seconds is None and typical is not None else seconds
        end = ends[index]
        out.append(None if guess is None else TransferWindow(end - guess, end, ESTIMATED))
    return out


def _least(on_links: float | None, shortest: float | None, own: float) -> float | None:
    """Return the smallest known estimate; its own duration alone tells nothing."""
    known = [seconds for seconds in (on_links, shortest) if seconds is not None]
    return min(*known, own) if known else None


def _on_links(c: TracedCollective, links: MachineLinks) -> float | None:
    return links.seconds(c.kind, c.nbytes, c.num_ranks, c.dtype)


def _typical_share(found: Sequence[float | None], own: Sequence[float]) -> float | None:
    """Return the fraction of known collectives that moves: the estimate for unknown sizes."""
    known = [(f, o) for f, o in zip(found, own, strict=True) if f is not None]
    total = sum(o for _, o in known)
    return sum(f for f, _ in known) / total if total else None


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
