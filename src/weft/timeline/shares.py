"""How long intervals cover time, alone and together, for many groups at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Intervals(NamedTuple):
    """Intervals of time, each belonging to a group."""

    group: Ints
    start: Floats
    end: Floats


class Shares(NamedTuple):
    """For each group the seconds covered by the first intervals only, the second only, both."""

    first: Floats
    second: Floats
    both: Floats


def shares(first: Intervals, second: Intervals, num_groups: int) -> Shares:
    """Sweep over all starts and ends in order of time and count what is open.

    A group's last end closes its last interval, so the counts are zero where one group ends
    and the next begins, and one cumulative sum serves all of them.
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

    return Shares(
        total(in_first & ~in_second), total(in_second & ~in_first), total(in_first & in_second)
    )


def covered(intervals: Intervals, num_groups: int) -> Floats:
    """Give the seconds that each group's intervals cover together."""
    nothing = Intervals(np.empty(0, np.int64), np.empty(0), np.empty(0))
    return shares(intervals, nothing, num_groups).first
