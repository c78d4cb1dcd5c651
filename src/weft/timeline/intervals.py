"""Interval algebra: unions, intersections and differences of time intervals.

``IntervalSet`` is the set of times that some intervals cover. The functions with a ``group`` column
compute covered and overlapping seconds for many groups (ranks, steps) in one sweep.
``assign_rows`` puts spans that overlap on separate rows of a display.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IntervalSet:
    """The times that some intervals cover, as disjoint intervals in order.

    >>> a, b = IntervalSet.of([0.0, 1.0, 5.0], [2.0, 3.0, 6.0]), IntervalSet.of([2.5], [5.5])
    >>> a.seconds, (a & b).seconds, (a - b).seconds, (a | b).seconds
    (4.0, 1.0, 3.0, 6.0)
    """

    start: Floats
    end: Floats

    @classmethod
    def of(cls, start: Floats | list[float], end: Floats | list[float]) -> "IntervalSet":
        """Return the union of intervals; those that end before they start are empty."""
        first, last = np.asarray(start, float), np.asarray(end, float)
        keep = last > first
        order = np.argsort(first[keep], kind="stable")
        first, last = first[keep][order], last[keep][order]
        if not len(first):
            return cls(first, last)
        reach = np.maximum.accumulate(last)
        begins = np.concatenate([[True], first[1:] > reach[:-1]])
        ends = np.concatenate([begins[1:], [True]])
        return cls(first[begins], reach[ends])

    @classmethod
    def window(cls, start: float, end: float) -> "IntervalSet":
        """Return the set of one interval."""
        return cls.of([start], [end])

    @property
    def seconds(self) -> float:
        """The total duration."""
        return float((self.end - self.start).sum())

    def before(self, time: Floats) -> Floats:
        """Return the covered seconds before each time."""
        if not len(self.start):
            return np.zeros_like(time)
        total = np.concatenate([[0.0], np.cumsum(self.end - self.start)])
        place = np.searchsorted(self.start, time, side="right")
        inside = np.minimum(time, self.end[place - 1]) - self.start[place - 1]
        return np.where(place > 0, total[place - 1] + inside, 0.0)

    def within(self, start: Floats, end: Floats) -> Floats:
        """Return the covered seconds inside each interval."""
        out: Floats = self.before(np.asarray(end, float)) - self.before(np.asarray(start, float))
        return out

    def __and__(self, other: "IntervalSet") -> "IntervalSet":
        return self._combined(other, 2)

    def __or__(self, other: "IntervalSet") -> "IntervalSet":
        return self._combined(other, 1)

    def __sub__(self, other: "IntervalSet") -> "IntervalSet":
        if not len(self.start):
            return self
        low = min(self.start[0], other.start[0]) if len(other.start) else self.start[0]
        high = max(self.end[-1], other.end[-1]) if len(other.end) else self.end[-1]
        outside = IntervalSet(
            np.concatenate([[low], other.end]), np.concatenate([other.start, [high]])
        )
        return self & IntervalSet.of(outside.start, outside.end)

    def _combined(self, other: "IntervalSet", needed: int) -> "IntervalSet":
        """Sweep over all bounds and keep where at least ``needed`` of the two are open."""
        times = np.concatenate([self.start, other.start, self.end, other.end])
        half = len(times) // 2
        opens = np.repeat([1, -1], [half, half])
        order = np.lexsort((-opens, times))
        count = np.cumsum(opens[order])
        inside = count >= needed
        edges = np.flatnonzero(inside != np.concatenate([[False], inside[:-1]]))
        bounds = times[order][edges]
        return IntervalSet.of(bounds[::2], bounds[1::2])


class GroupedIntervals(NamedTuple):
    """Intervals of time, each belonging to a group."""

    group: Ints
    start: Floats
    end: Floats


class GroupedOverlap(NamedTuple):
    """Seconds per group covered by only the first intervals, only the second, and both."""

    first: Floats
    second: Floats
    both: Floats


def overlap_by_group(
    first: GroupedIntervals, second: GroupedIntervals, num_groups: int
) -> GroupedOverlap:
    """Return how long two sets of intervals cover each group, alone and together.

    One sweep over all starts and ends counts the open intervals. A group's last end closes its
    last interval, so the counts are zero between groups, and one cumulative sum serves all.
    """
    times = np.concatenate([first.start, first.end, second.start, second.end])
    group = np.concatenate([first.group, first.group, second.group, second.group])
    order = np.lexsort((times, group))
    num_first, num_second = len(first.group), len(second.group)
    opens = np.repeat([1, -1, 0, 0], [num_first, num_first, num_second, num_second])
    other = np.repeat([0, 0, 1, -1], [num_first, num_first, num_second, num_second])
    in_first = np.cumsum(opens[order]) > 0
    in_second = np.cumsum(other[order]) > 0
    seconds = np.diff(times[order], append=0.0)
    group = group[order]

    def total(chosen: NDArray[np.bool_]) -> Floats:
        return np.bincount(group[chosen], seconds[chosen], num_groups).astype(np.float64)

    return GroupedOverlap(
        total(in_first & ~in_second), total(in_second & ~in_first), total(in_first & in_second)
    )


def covered_by_group(intervals: GroupedIntervals, num_groups: int) -> Floats:
    """Return the seconds that the union of each group's intervals covers."""
    nothing = GroupedIntervals(np.empty(0, np.int64), np.empty(0), np.empty(0))
    return overlap_by_group(intervals, nothing, num_groups).first


def assign_rows(starts: Sequence[float], ends: Sequence[float]) -> list[int]:
    """Return for each span the first row that is free when it starts; starts are ascending.

    Nested spans are placed below their parents, if longer spans come first among equal starts.
    """
    free: list[float] = []
    chosen = []
    for start, end in zip(starts, ends, strict=True):
        place = next((i for i, then in enumerate(free) if then <= start), len(free))
        free[place : place + 1] = [end]
        chosen.append(place)
    return chosen
