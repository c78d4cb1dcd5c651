"""How groups of GPU events spend their time: in one sweep for all steps of a rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.timeline.intervals import GroupedIntervals, IntervalSet, overlap_by_group
from weft.trace.analysis.analysis_result import TimeSplit
from weft.trace.analysis.waiting import TransferWindow
from weft.trace.trace import Bools, Floats, Ints, Trace
from weft.trace.trace_collectives import communication

_NOISE = 1e-9  # relative to a sum of seconds


@dataclass(frozen=True)
class GpuEvents:
    """The GPU events of a rank in two classes: communication, and everything else."""

    is_comm: Bools  # in the order of trace.gpu
    start: Floats
    end: Floats

    @classmethod
    def of(cls, trace: Trace) -> "GpuEvents":
        """Return the GPU events of a trace."""
        return cls(communication(trace), trace.columns.start[trace.gpu], trace.end[trace.gpu])

    @cached_property
    def comm(self) -> IntervalSet:
        """When collective kernels ran."""
        return IntervalSet.of(self.start[self.is_comm], self.end[self.is_comm])

    @cached_property
    def other(self) -> IntervalSet:
        """When anything else ran."""
        return IntervalSet.of(self.start[~self.is_comm], self.end[~self.is_comm])

    @cached_property
    def busy(self) -> IntervalSet:
        """When anything ran."""
        return self.comm | self.other

    @property
    def span(self) -> float:
        """Seconds from the first start to the last end."""
        return float(self.end.max() - self.start.min()) if len(self.start) else 0.0

    def moved(self, seconds: float, drift: float) -> "GpuEvents":
        """Return the events on another clock, as ``Trace.moved`` does."""
        start = self.start * (1 + drift) + seconds
        return GpuEvents(self.is_comm, start, start + (self.end - self.start))


class TimeSplits:
    """Computes how groups of GPU events spend their time, for all groups in one sweep."""

    def __init__(
        self,
        sides: GpuEvents,
        moved: Sequence[TransferWindow | None],
        places: Ints,  # of the collectives among the GPU events
    ) -> None:
        self.sides = sides
        known = [(n, each) for n, each in zip(places, moved, strict=True) if each is not None]
        dark = [n for n, each in zip(places, moved, strict=True) if each is None]
        self.dark = np.array(dark, np.int64)  # collectives whose transfer times are unknown
        self.moved = np.array([n for n, _ in known], np.int64)
        first = np.array([each.start for _, each in known], float)
        last = np.array([each.end for _, each in known], float)
        self.first = np.clip(first, sides.start[self.moved], sides.end[self.moved])
        self.last = np.clip(last, self.first, sides.end[self.moved])

    def by(self, group: Ints, num_groups: int) -> list[TimeSplit]:
        """Return the time split of groups of GPU events."""
        sides, is_comm = self.sides, self.sides.is_comm
        return self._splits(
            GroupedIntervals(group[is_comm], sides.start[is_comm], sides.end[is_comm]),
            GroupedIntervals(group[~is_comm], sides.start[~is_comm], sides.end[~is_comm]),
            GroupedIntervals(group[self.moved], self.first, self.last),
            group[self.dark],
            num_groups,
        )

    def inside(self, windows: Sequence[tuple[float, float] | None]) -> list[TimeSplit | None]:
        """Return the time split of windows, from all GPU events clipped to them."""
        sides, is_comm = self.sides, self.sides.is_comm
        found = [(n, window) for n, window in enumerate(windows) if window is not None]
        out: list[TimeSplit | None] = [None] * len(windows)
        if not found:
            return out
        edges = [window for _, window in found]
        splits = self._splits(
            _clipped(sides.start[is_comm], sides.end[is_comm], edges),
            _clipped(sides.start[~is_comm], sides.end[~is_comm], edges),
            _clipped(self.first, self.last, edges),
            _clipped(sides.start[self.dark], sides.end[self.dark], edges).group,
            len(found),
        )
        for (number, _), split in zip(found, splits, strict=True):
            out[number] = split
        return out

    def _splits(
        self,
        comm: GroupedIntervals,
        other: GroupedIntervals,
        moves: GroupedIntervals,
        dark: Ints,
        num_groups: int,
    ) -> list[TimeSplit]:
        all_of = overlap_by_group(comm, other, num_groups)
        moved = overlap_by_group(moves, other, num_groups)
        group = np.concatenate((comm.group, other.group))
        count = np.bincount(group, minlength=num_groups)
        unknown = np.bincount(dark, minlength=num_groups) > 0
        return [
            self._split(*map(float, each), known=not odd)
            for *each, odd in zip(count, *all_of, moved.first, moved.both, unknown, strict=True)
        ]

    def _split(
        self,
        count: float,
        exposed: float,
        compute: float,
        both: float,
        open_: float,
        hidden: float,
        *,
        known: bool,
    ) -> TimeSplit:
        comm = exposed + both
        known = known or not comm
        return TimeSplit(
            num_gpu_events=int(count),
            busy=exposed + compute + both,
            compute=compute + both,
            communication=comm,
            exposed=exposed,
            waiting=_rest(comm, open_ + hidden) if known else None,
            moving=open_ + hidden if known else None,
            exposed_waiting=_rest(exposed, open_) if known else None,
            exposed_moving=open_ if known else None,
        )


def _rest(whole: float, part: float) -> float:
    """Return whole minus part, with rounding errors set to zero."""
    left = whole - part
    return left if left > _NOISE * whole else 0.0


def _clipped(
    start: Floats, end: Floats, windows: Sequence[tuple[float, float]]
) -> GroupedIntervals:
    """Clip intervals to windows; the group of a piece is the index of its window."""
    groups, starts, ends = [np.empty(0, np.int64)], [np.empty(0)], [np.empty(0)]
    for number, (first, last) in enumerate(windows):
        mine = np.flatnonzero((start < last) & (end > first))
        groups.append(np.full(len(mine), number))
        starts.append(np.maximum(start[mine], first))
        ends.append(np.minimum(end[mine], last))
    return GroupedIntervals(np.concatenate(groups), np.concatenate(starts), np.concatenate(ends))
