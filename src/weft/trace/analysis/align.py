"""Aligns the clocks of several ranks' traces by their common collectives.

A collective ends on all its ranks within microseconds, however late some of them began. So the ends
of matching collectives give the offset between the clocks of two ranks, and show which files are
not part of the job. Collectives match by sequence number if the trace has them, otherwise by their
position in their group, after finding how many more one rank recorded at the start.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from weft.trace.trace import Floats, Trace
from weft.trace.trace_collectives import MESSAGE, TracedCollective, collectives
from weft.units import format_time

CLOSE = (
    10e-6  # seconds: ends of one collective on aligned clocks, measured on eight V100 (1 to 7 us)
)
_ALIKE = 0.6  # fraction of the collectives of two ranks of one job that must be of the same kind
_FARTHEST = 64  # collectives that one rank may have recorded before another

_Name = tuple[object, str, int]  # group, and place or number in it
_Names = dict[_Name, int]


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's trace with its collectives."""

    trace: Trace
    collectives: tuple[TracedCollective, ...]

    @classmethod
    def of(cls, trace: Trace) -> "RankTrace":
        """Build it from a trace."""
        return cls(trace, collectives(trace))

    def starts(self, indices: Iterable[int]) -> Floats:
        """Return the start times of some of its collectives."""
        return self.trace.columns.start[[self.collectives[index].row for index in indices]]

    def ends(self, indices: Iterable[int]) -> Floats:
        """Return the end times of some of its collectives."""
        return self.trace.end[[self.collectives[index].row for index in indices]]


@dataclass(frozen=True, slots=True)
class CollectiveMatch:
    """One collective on several ranks: trace indices, and its indices in those traces."""

    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class AlignedJob:
    """Traces of one run on one clock, and their matching collectives."""

    ranks: tuple[RankTrace, ...]
    matches: tuple[CollectiveMatch, ...]
    notes: tuple[str, ...]
    shifts: tuple["ClockShift", ...] = ()  # how each rank was moved

    @cached_property
    def within(self) -> float | None:
        """The median of the seconds between the ends of a collective on all its ranks."""
        spreads = [np.ptp(self.ends(match)) for match in self.matches]
        return _middle(np.array(spreads)) if spreads else None

    def uncertainty(self, match: CollectiveMatch) -> float:
        """Return the uncertainty of the clocks between the ranks of a collective, in seconds.

        If the ends of a collective are close, the clocks are as accurate as for the others;
        otherwise the clocks, or the match, are off by the distance between them.
        """
        spread, usual = float(np.ptp(self.ends(match))), self.within or 0.0
        return usual if spread <= CLOSE else max(spread, usual)

    @cached_property
    def _times(self) -> list[tuple[list[float], list[float]]]:
        """The starts and ends of the collectives of each rank."""
        every = [(each, range(len(each.collectives))) for each in self.ranks]
        return [(each.starts(own).tolist(), each.ends(own).tolist()) for each, own in every]

    def starts(self, match: CollectiveMatch) -> Floats:
        """Return the start of a collective on each of its ranks."""
        return np.array([self._times[n][0][index] for n, index in match.members])

    def ends(self, match: CollectiveMatch) -> Floats:
        """Return the end of a collective on each of its ranks."""
        return np.array([self._times[n][1][index] for n, index in match.members])


def align(ranks: Sequence[RankTrace]) -> AlignedJob:
    """Return the traces of a job, aligned to the clock of the first."""
    names = _names(ranks)
    sizes = [Counter(group for group, *_ in each) for each in names]
    moved, notes, shifts = [ranks[0]], list[str](), [ClockShift(0.0)]
    for number in range(1, len(ranks)):
        other = _most_shared(names, sizes, number)
        shift = _shift(ranks, moved, names, number, other)
        trace = ranks[number].trace.moved(
            shift.at_zero, shift.drift, origin_ns=ranks[0].trace.origin_ns
        )
        moved.append(replace(ranks[number], trace=trace))
        notes += shift.notes
        shifts.append(shift)
    return AlignedJob(tuple(moved), _matches(names), tuple(notes), tuple(shifts))


@dataclass(frozen=True, slots=True)
class ClockShift:
    """The correction of a clock: seconds at its zero, and seconds per second after."""

    at_zero: float
    drift: float = 0.0
    notes: tuple[str, ...] = ()


def _shift(
    ranks: Sequence[RankTrace],
    moved: Sequence[RankTrace],
    names: Sequence[_Names],
    number: int,
    other: int,
) -> ClockShift:
    """Compare a rank with a previous one."""
    each = ranks[number].trace
    zero = (each.origin_ns - ranks[0].trace.origin_ns) * 1e-9
    both = sorted(names[other].keys() & names[number].keys(), key=names[number].__getitem__)
    if not both:
        return ClockShift(zero, 0.0, (f"rank {each.rank} shares no collective with the others",))
    mine = ranks[number].ends(names[number][key] for key in both)
    theirs = moved[other].ends(names[other][key] for key in both)
    # A collective ends on all ranks nearly at once, while ranks may start it far apart: ends tell
    # clocks, starts tell lateness.
    apart = theirs - (mine + zero)
    middle = _middle(apart)
    drift = _drift(mine, apart - middle)
    if abs(middle) <= CLOSE and not drift:
        return ClockShift(zero)
    note = (
        f"the clock of rank {each.rank} was {format_time(abs(middle))} "
        f"{'behind' if middle > 0 else 'ahead of'} that of rank {moved[other].trace.rank}: "
        "moved so that matching collectives end together"
    )
    return ClockShift(zero + _middle(apart - drift * mine), drift, (note,))


def _most_shared(names: Sequence[_Names], sizes: Sequence[Counter[object]], number: int) -> int:
    """Return the earlier rank that shares the most collectives.

    The sizes of common groups bound what two ranks share, so that few are compared by name.
    """
    mine, own = names[number].keys(), sizes[number]
    most = [sum(min(size, sizes[n][group]) for group, size in own.items()) for n in range(number)]
    best, shared = 0, -1
    for n in sorted(range(number), key=lambda n: -most[n]):
        if most[n] <= shared:
            break
        found = len(names[n].keys() & mine)
        if found > shared:
            best, shared = n, found
    return best


def _drift(when: Floats, apart: Floats) -> float:
    """Return the relative drift of two clocks; 0 if the ends are close without it."""
    # Fewer points cannot tell a drift from jitter.
    if len(when) < 8 or np.median(np.abs(apart)) <= CLOSE:
        return 0.0
    # Medians of the first and last third: a robust slope.
    third = len(when) // 3
    span = float(np.median(when[-third:]) - np.median(when[:third]))
    rise = float(np.median(apart[-third:]) - np.median(apart[:third]))
    slope = rise / span if span > 0 else 0.0
    rest = apart - slope * when
    # Kept only if it explains half of the distance; otherwise jitter would bend clocks.
    better = np.median(np.abs(rest - np.median(rest))) < 0.5 * np.median(np.abs(apart))
    return slope if better else 0.0


def _middle(values: Floats) -> float:
    """Return the median; numpy's takes a tenth of a second at first use."""
    return float(np.sort(values)[len(values) // 2])


def _by_group(each: RankTrace, twins: set[tuple[int, ...]]) -> dict[object, list[int]]:
    """Return the collectives of each process group; messages between two ranks are left out.

    A message ends on its sender when it is sent, and has the number of the collective before it.
    """
    out: dict[object, list[int]] = defaultdict(list)
    for index, collective in enumerate(each.collectives):
        is_told = collective.kind or collective.nbytes is not None
        if collective.kind == MESSAGE or not (is_told or each.trace.launch[collective.row] >= 0):
            continue
        ranks, name = collective.ranks, collective.group
        out[(ranks, name) if ranks in twins else ranks or name].append(index)
    return out


def _twins(ranks: Sequence[RankTrace]) -> set[tuple[int, ...]]:
    """Return the lists of ranks of which some rank has several process groups.

    Each of these groups counts its own collectives, so their names tell them apart.
    """
    found = set()
    for each in ranks:
        groups = {(c.ranks, c.group) for c in each.collectives if c.ranks and c.group}
        count = Counter(listed for listed, _ in groups)
        found |= {listed for listed, number in count.items() if number > 1}
    return found


def _names(ranks: Sequence[RankTrace]) -> list[_Names]:
    """Return a global name of every collective of each rank: its group and its number in it."""
    reference: dict[object, tuple[RankTrace, list[int]]] = {}
    twins = _twins(ranks)
    out = []
    for each in ranks:
        names: _Names = {}
        for group, indices in _by_group(each, twins).items():
            first, theirs = reference.setdefault(group, (each, indices))
            offset = _offset(first, theirs, each, indices)
            for place, index in enumerate(indices):
                # The profiler's sequence number is exact; without it collectives are counted, and
                # traces may begin at different ones.
                number = each.collectives[index].sequence
                if number is None:
                    names[group, "place", place + offset] = index
                else:
                    names[group, "number", number] = index
        out.append(names)
    return out


def _offset(first: RankTrace, a: list[int], other: RankTrace, b: list[int]) -> int:
    """Return the offset at which most kinds and sizes agree; among equals the closest ends."""
    if first is other:
        return 0
    signs_a, signs_b = _signs(first, a), _signs(other, b)
    ends_a, ends_b = first.ends(a), other.ends(b)
    best: tuple[float, float, int] = (-1.0, 0.0, 0)
    for offset in range(-min(_FARTHEST, len(b) - 1), min(_FARTHEST, len(a) - 1) + 1):
        low, high = max(0, offset), min(len(a), len(b) + offset)
        alike = float((signs_a[low:high] == signs_b[low - offset : high - offset]).sum())
        apart = ends_a[low:high] - ends_b[low - offset : high - offset]
        # At the right offset ends differ by a constant, the clocks. The last term prefers small
        # offsets among equals.
        spread = float(np.median(np.abs(apart - np.median(apart)))) + 1e-9 * abs(offset)
        best = max(best, (alike, -spread, offset))
    return best[2]


def _signs(each: RankTrace, indices: list[int]) -> np.ndarray:
    """Return a signature of each collective: kind, and size if all ranks move the same."""
    chosen = [each.collectives[i] for i in indices]
    # Ranks of other collectives may send different sizes, as in an uneven all-to-all.
    signs = [hash((c.kind, c.nbytes if c.kind == "all_reduce" else 0)) for c in chosen]
    return np.array(signs, np.int64).reshape(-1)


def is_one_job(first: RankTrace, other: RankTrace) -> bool:
    """Return whether two traces can be of one run: world size, device and collectives."""
    a, b = first.trace, other.trace
    if (a.world_size, a.device) != (b.world_size, b.device):
        return False
    here, there = _names((first, other))
    both = list(here.keys() & there.keys())
    alike = _signs(first, [here[key] for key in both]) == _signs(
        other, [there[key] for key in both]
    )
    return float(alike.sum()) >= _ALIKE * len(both)


def _matches(names: Sequence[_Names]) -> tuple[CollectiveMatch, ...]:
    found: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for number, each in enumerate(names):
        for name, index in each.items():
            found[name].append((number, index))
    return tuple(CollectiveMatch(tuple(members)) for members in found.values() if len(members) > 1)
