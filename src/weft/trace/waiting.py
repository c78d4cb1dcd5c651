"""How much of a collective kernel is waiting for other ranks, and how much moves bytes.

A collective kernel begins when its rank is there and ends when all are done. Seen on several
ranks, bytes move from the last start to the first end: before, somebody was missing; after, some
rank was done. With one rank, what would move takes about as long as the link needs for it, or as
the shortest of equal collectives in the file took, whichever is less, and stands at the end.
One of unknown size is taken to move for the same share of its time as the others.

Where the clocks of ranks are farther apart than the time in which bytes move, neither is known.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.trace.align import Job, Match, Ranked
from weft.trace.analysis import ESTIMATED, MEASURED
from weft.trace.collectives import Collective
from weft.trace.links import Links
from weft.trace.steps import Steps, step_by_row

_SMALL = 0.1  # of the longest kernel of a collective: a doubt so small changes nothing
_ENOUGH = 3  # equal collectives before the shortest of them says anything


@dataclass(frozen=True, slots=True)
class Moving:
    """When the bytes of a collective moved."""

    start: float
    end: float
    basis: str
    last_rank: int | None = None

    @property
    def seconds(self) -> float:
        """How long they moved."""
        return max(self.end - self.start, 0.0)


def moving(job: Job, steps: Sequence[Steps], links: Links) -> list[list[Moving | None]]:
    """Say for each rank and each of its collectives when bytes moved; None if nothing tells."""
    out = [_estimated(ranked, each, links) for ranked, each in zip(job.ranks, steps, strict=True)]
    for match in job.matches:
        moves = measured(job, match)
        for number, index in match.members:
            out[number][index] = moves
    return out


def measured(job: Job, match: Match) -> Moving | None:
    """Return when bytes moved between ranks; None if their clocks are too far apart to tell."""
    starts, ends = job.starts(match), job.ends(match)
    last = match.members[int(np.argmax(starts))][0]
    moves = Moving(float(starts.max()), float(ends.min()), MEASURED, job.ranks[last].trace.rank)
    longest = float((ends - starts).max())
    if longest <= 0:  # kernels of no length: nothing waited, nothing moved
        return moves
    doubt = job.uncertainty(match)
    if moves.seconds <= 0 or (moves.seconds <= doubt and doubt > _SMALL * longest):
        return None
    return moves


def _estimated(ranked: Ranked, steps: Steps, links: Links) -> list[Moving | None]:
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
    out: list[Moving | None] = []
    for index, seconds in enumerate(found):
        guess = typical * own[index] if seconds is None and typical is not None else seconds
        end = ends[index]
        out.append(None if guess is None else Moving(end - guess, end, ESTIMATED))
    return out


def _least(on_links: float | None, shortest: float | None, own: float) -> float | None:
    """Give the least of what is known; how long it took says nothing by itself."""
    known = [seconds for seconds in (on_links, shortest) if seconds is not None]
    return min(*known, own) if known else None


def _on_links(c: Collective, links: Links) -> float | None:
    return links.seconds(c.kind, c.nbytes, c.num_ranks, c.dtype)


def _typical_share(found: Sequence[float | None], own: Sequence[float]) -> float | None:
    """Give the share of known collectives that moves: the best guess for one without a size."""
    known = [(f, o) for f, o in zip(found, own, strict=True) if f is not None]
    total = sum(o for _, o in known)
    return sum(f for f, _ in known) / total if total else None


def _classes(ranked: Ranked, steps: Steps) -> list[tuple[object, ...]]:
    """Name what is equal: kind and size, or where a size is missing, the place in the step."""
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
    """Give the shortest of equal collectives: none of them can have needed longer to move."""
    times: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for seconds, name in zip(own, names, strict=True):
        if name:
            times[name].append(seconds)
    return {name: min(each) for name, each in times.items() if len(each) >= _ENOUGH}


def basis_of(found: Sequence[Moving | None]) -> str:
    """Name what the waiting of a rank rests on."""
    bases = {each.basis for each in found if each is not None}
    if not found:
        return MEASURED
    if not bases:
        return "unknown"
    return ESTIMATED if ESTIMATED in bases or None in found else MEASURED
