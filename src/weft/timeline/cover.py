"""Cover: a set of moments, as intervals that do not touch, and what sets have in common."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cover:
    """Moments covered by some intervals, in order of time.

    >>> a, b = Cover.of([0.0, 1.0, 5.0], [2.0, 3.0, 6.0]), Cover.of([2.5], [5.5])
    >>> a.seconds, (a & b).seconds, (a - b).seconds, (a | b).seconds
    (4.0, 1.0, 3.0, 6.0)
    """

    start: Floats
    end: Floats

    @classmethod
    def of(cls, start: Floats | list[float], end: Floats | list[float]) -> "Cover":
        """Join intervals that overlap or touch; those that end before they start cover nothing."""
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
    def window(cls, start: float, end: float) -> "Cover":
        """Give the moments of one interval."""
        return cls.of([start], [end])

    @property
    def seconds(self) -> float:
        """How long it is in all."""
        return float((self.end - self.start).sum())

    def before(self, time: Floats) -> Floats:
        """Give the covered seconds before each time."""
        if not len(self.start):
            return np.zeros_like(time)
        total = np.concatenate([[0.0], np.cumsum(self.end - self.start)])
        place = np.searchsorted(self.start, time, side="right")
        inside = np.minimum(time, self.end[place - 1]) - self.start[place - 1]
        return np.where(place > 0, total[place - 1] + inside, 0.0)

    def within(self, start: Floats, end: Floats) -> Floats:
        """Give the covered seconds of each interval."""
        out: Floats = self.before(np.asarray(end, float)) - self.before(np.asarray(start, float))
        return out

    def __and__(self, other: "Cover") -> "Cover":
        return self._combined(other, 2)

    def __or__(self, other: "Cover") -> "Cover":
        return self._combined(other, 1)

    def __sub__(self, other: "Cover") -> "Cover":
        if not len(self.start):
            return self
        low = min(self.start[0], other.start[0]) if len(other.start) else self.start[0]
        high = max(self.end[-1], other.end[-1]) if len(other.end) else self.end[-1]
        outside = Cover(np.concatenate([[low], other.end]), np.concatenate([other.start, [high]]))
        return self & Cover.of(outside.start, outside.end)

    def _combined(self, other: "Cover", needed: int) -> "Cover":
        """Sweep over all bounds and keep where at least so many of the two are open."""
        times = np.concatenate([self.start, other.start, self.end, other.end])
        half = len(times) // 2
        opens = np.repeat([1, -1], [half, half])
        order = np.lexsort((-opens, times))
        count = np.cumsum(opens[order])
        inside = count >= needed
        edges = np.flatnonzero(inside != np.concatenate([[False], inside[:-1]]))
        bounds = times[order][edges]
        return Cover.of(bounds[::2], bounds[1::2])
