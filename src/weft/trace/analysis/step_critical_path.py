"""The critical path of a step: what its end waited for, back to its beginning.

The path covers one period of the step, or its wall if there is only one. It starts at the last GPU
event of the step. If that event's launch came after the previous GPU event ended, it waited for the
host, and the path continues at the last time the host itself had waited for the GPU. Otherwise it
waited for that event. Gaps belong to their neighbours. Where the host's own work stands for that of
a GPU, it waited for the work before it.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from weft.trace.analysis.analysis_result import CriticalPath, TimePart
from weft.trace.analysis.idle import LATENCY, QUEUED, SYNC, host_rows
from weft.trace.analysis.steps import TraceSteps
from weft.trace.analysis.waiting import TransferWindow
from weft.trace.trace import EventKind, Trace

COMPUTE, COPIES, MOVING, WAITING = "compute", "copies", "moving bytes", "waiting for other ranks"
HOST, COMMUNICATION = "host", "communication"
_CLOCK = 1e-6  # seconds: an event may seem to start a tick before the end of what it waited for
_SHOWN = 8


def critical_path(
    trace: Trace, steps: TraceSteps, step: int, moved: dict[int, TransferWindow | None]
) -> CriticalPath | None:
    """Return the critical path of one step; ``moved`` has the transfer times of collectives."""
    rows = trace.gpu[steps.of == step]
    if not len(rows):
        return None
    last = int(rows[np.argmax(trace.end[rows])])
    end = float(trace.end[last])
    if not steps.found:
        end = max(end, steps.marks[step].end)
    # If the host runs ahead, marks are short and the GPU's period is the duration of a step.
    length = steps.periods[step] or steps.period or steps.marks[step].wall
    search = _CriticalPathSearch(trace, moved, end - length, end)
    search.spend(HOST, end, float(trace.end[last]))
    search.back_from(last)
    parts = sorted(search.seconds.items(), key=lambda each: -each[1])
    names = sorted(search.names.items(), key=lambda each: -each[1])[:_SHOWN]
    return CriticalPath(
        steps.marks[step].name,
        end - min(search.reached, end),
        tuple(
            TimePart(what, seconds, search.counts[what]) for what, seconds in parts if seconds > 0
        ),
        tuple(TimePart(name, seconds) for name, seconds in names),
        tuple(reversed(search.rows)),
    )


class _CriticalPathSearch:
    """Walks back in time and records what it passed."""

    def __init__(
        self, trace: Trace, moved: dict[int, TransferWindow | None], begin: float, end: float
    ) -> None:
        self.trace, self.moved, self.begin = trace, moved, begin
        self.reached = begin
        self.rows: list[int] = []
        self.seconds: dict[str, float] = defaultdict(float)
        self.names: dict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        inside = (trace.end[trace.gpu] >= begin) & (trace.columns.start[trace.gpu] <= end)
        rows = trace.gpu[inside]
        by_end = rows[np.argsort(trace.end[rows], kind="stable")]
        self.by_end, self.ends = by_end.tolist(), trace.end[by_end].tolist()
        self.syncs = _Syncs(trace)

    def spend(self, what: str, end: float, start: float) -> None:
        """Record what an interval was spent on, clipped to the step."""
        seconds = end - max(start, self.begin)
        if seconds > 0:
            self.seconds[what] += seconds
            self.counts[what] += 1

    def back_from(self, row: int) -> None:
        """Walk back to the step's beginning, or until nothing precedes."""
        trace, time = self.trace, float(self.trace.end[row])
        while time > self.begin and row >= 0:
            start = float(trace.columns.start[row])
            self.rows.append(row)
            self._spend_event(row, time, start)
            time = min(start, time)
            before, ended = self._last_ended(row, time)
            launch = int(trace.launch[row])
            called = float(trace.columns.start[launch]) if launch >= 0 else -np.inf
            if launch >= 0 and trace.columns.kind[launch] != EventKind.RUNTIME:
                self.spend(HOST, time, max(ended, self.begin))  # work of the host itself
                row, time = before, min(time, ended)
            elif launch >= 0 and called > ended:
                self.rows.append(launch)
                self.spend(LATENCY, time, called)
                row, time = self._through_host(called)
            else:
                self.spend(QUEUED, time, max(ended, self.begin))
                row, time = before, min(time, ended)
        self.reached = max(min(time, self.reached), self.begin) if row < 0 else self.begin

    def _last_ended(self, row: int, time: float) -> tuple[int, float]:
        place = bisect_right(self.ends, time + _CLOCK) - 1
        while place >= 0 and (
            self.by_end[place] == row or self.trace.columns.start[self.by_end[place]] >= time
        ):
            place -= 1
        return (self.by_end[place], self.ends[place]) if place >= 0 else (-1, -np.inf)

    def _through_host(self, called: float) -> tuple[int, float]:
        """Walk back along the host to where it last waited for the GPU, or to the beginning."""
        woke = self.syncs.last_before(called)
        if woke <= self.begin:
            self.spend(HOST, called, self.begin)
            return -1, self.begin
        self.spend(HOST, called, woke)
        before, ended = self._last_ended(-1, woke)
        self.spend(SYNC, woke, max(ended, self.begin))
        return before, min(ended, woke)

    def _spend_event(self, row: int, end: float, start: float) -> None:
        name = self.trace.name_of(row)
        self.names[name] += max(0.0, end - max(start, self.begin))
        if row in self.moved:
            moved = self.moved[row]
            if moved is None:
                self.spend(COMMUNICATION, end, start)
                return
            first = min(max(moved.start, start), end)
            last = min(max(moved.end, first), end)
            self.spend(MOVING, last, first)
            self.spend(WAITING, first, start)
            self.spend(WAITING, end, last)
        else:
            is_kernel = self.trace.columns.kind[row] == EventKind.KERNEL
            self.spend(COMPUTE if is_kernel else COPIES, end, start)


class _Syncs:
    """The times at which the host had waited for the GPU."""

    def __init__(self, trace: Trace) -> None:
        rows = host_rows(trace)[SYNC]
        long = rows[trace.columns.duration[rows] > 5 * _CLOCK]
        self.ends: Sequence[float] = np.sort(trace.end[long]).tolist()

    def last_before(self, time: float) -> float:
        place = bisect_right(self.ends, time) - 1
        return self.ends[place] if place >= 0 else -np.inf
