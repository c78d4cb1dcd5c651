"""Attributes idle GPU time to its causes.

A gap ends with a GPU event. If its launch came after the gap began, the host was late: what its
threads did meanwhile is the cause. From the launch to the start it is launch latency. If the launch
came before the gap, the event was queued, and the gap is the GPU's own time between events or a
wait for an event of another stream.

Host time before the first launch of a step is separate: it prepares the step's input, which is
unrelated to launch overhead. So is a period of over a millisecond without a launch: an operator
takes tens of microseconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.timeline.intervals import IntervalSet
from weft.trace.analysis.analysis_result import TimePart
from weft.trace.analysis.steps import TraceSteps
from weft.trace.trace import EventKind, Ints, Trace

_SYNCHRONISES = re.compile(r"Synchronize|^(cuda|hip)Memcpy(2D|3D)?$|StreamWaitValue|EventQuery")
_LOADS = re.compile(r"DataLoader|dataloader|data_loader|_next_data|pin_memory", re.IGNORECASE)
_ALLOCATES = re.compile(r"^(cuda|hip)(Host|Ext)?(Malloc|Free|MemCreate|MemMap)|cuMem(Create|Map)")

SYNC, LOADING, ALLOCATING = "synchronising with the GPU", "loading data", "allocating memory"
LAUNCHING, OPERATORS, PYTHON = (
    "launching kernels",
    "operators on the host",
    "Python, other host work",
)
LATENCY, QUEUED, UNKNOWN = (
    "launch until start",
    "between queued kernels",
    "launched before the window",
)
UNSEEN = "not known: the file has no launches"
PREPARING = "host work before a step's first kernel"
WORKING = "host work for over 1 ms without a launch"
_LONG = 1e-3  # seconds
_SHOWN = 8
HOST = (SYNC, LOADING, ALLOCATING, PREPARING, WORKING, LAUNCHING, OPERATORS, PYTHON)


@dataclass(frozen=True, slots=True)
class IdleTime:
    """The causes of idle GPU time, and the operators and ranges of the host open meanwhile.

    ``under`` covers all time in which the host was late, ``preparing`` that before the first launch
    of a step and ``launching`` the rest.
    """

    reasons: tuple[TimePart, ...] = ()
    under: tuple[TimePart, ...] = ()
    preparing: tuple[TimePart, ...] = ()
    launching: tuple[TimePart, ...] = ()

    def each(self, count: int) -> "IdleTime":
        """Return the idle time divided by ``count`` steps."""
        return IdleTime(
            *(
                tuple(TimePart(p.what, p.seconds / count, round(p.count / count)) for p in parts)
                for parts in (self.reasons, self.under, self.preparing, self.launching)
            )
        )


def idle_of(
    trace: Trace, busy: IntervalSet, steps: TraceSteps, windows: Sequence[tuple[float, float]] = ()
) -> IdleTime:
    """Attribute the gaps of a GPU to their causes, the longest first.

    Gaps are those inside ``windows``, or between the first and the last GPU event without windows.
    """
    gaps = _gaps(trace, busy, windows)
    if not len(gaps.start):
        return IdleTime()
    place = np.searchsorted(trace.columns.start[trace.gpu], gaps.end)
    last = place == len(trace.gpu)  # nothing follows: the host did something else until the end
    following = trace.gpu[np.minimum(place, len(trace.gpu) - 1)]
    launch = trace.launch[following]
    # Before: the host was late. After: the device took from the call to the start.
    called = np.clip(trace.columns.start[launch], gaps.start, gaps.end)
    called[last] = gaps.end[last]
    known = (launch >= 0) | (last & (trace.launch[trace.gpu] >= 0).any())
    late = known & (called > gaps.start)
    first = late & ~last & np.isin(launch, _first_launches(trace, steps))
    parts = {
        LATENCY: (gaps.end - called)[late],
        QUEUED: (gaps.end - gaps.start)[known & ~late],
        UNKNOWN if known.any() else UNSEEN: (gaps.end - gaps.start)[~known],
    }
    found = [TimePart(what, float(each.sum()), len(each)) for what, each in parts.items()]
    while_late = IntervalSet.of(gaps.start[late], called[late])
    before = IntervalSet.of(gaps.start[first], called[first])
    long = late & (called - gaps.start > _LONG)
    found += _host_reasons(
        trace,
        while_late,
        {PREPARING: before, WORKING: IntervalSet.of(gaps.start[long], called[long])},
    )
    reasons = sorted((p for p in found if p.seconds > 0), key=lambda p: -p.seconds)
    return IdleTime(
        tuple(reasons),
        _under(trace, while_late),
        _under(trace, before),
        _under(trace, while_late - before),
    )


def _first_launches(trace: Trace, steps: TraceSteps) -> Ints:
    """Return the rows of the calls that launched the first GPU event of each step."""
    inside = np.flatnonzero((steps.of >= 0) & (trace.launch[trace.gpu] >= 0))
    launch = trace.launch[trace.gpu[inside]]
    order = np.argsort(trace.columns.start[launch], kind="stable")
    _, first = np.unique(steps.of[inside[order]], return_index=True)
    found: Ints = launch[order][first].astype(np.int64)
    return found


def _gaps(trace: Trace, busy: IntervalSet, windows: Sequence[tuple[float, float]]) -> IntervalSet:
    """Return the idle intervals of windows, or between the first and the last GPU event."""
    if not len(trace.gpu):
        return busy
    if windows:
        return IntervalSet.of([a for a, _ in windows], [b for _, b in windows]) - busy
    rows = trace.gpu
    return (
        IntervalSet.window(float(trace.columns.start[rows[0]]), float(trace.end[rows].max())) - busy
    )


def _under(trace: Trace, late: IntervalSet) -> tuple[TimePart, ...]:
    """Sum, by name, the late time spent in host rows, excluding their children."""
    rows = _launching(trace)
    inside = np.zeros(len(trace))
    inside[rows] = late.within(trace.columns.start[rows], trace.end[rows])
    parent = trace.parent[rows]
    # Self time: what children cover is counted for them.
    own = inside.copy()
    np.subtract.at(own, parent[parent >= 0], inside[rows[parent >= 0]])
    own = np.maximum(own[rows], 0.0)
    names, place = np.unique(trace.columns.name[rows], return_inverse=True)
    seconds = np.bincount(place, own, len(names))
    count = np.bincount(place, own > 0, len(names))
    best = np.argsort(-seconds)[:_SHOWN]
    return tuple(
        TimePart(trace.names[names[i]], float(seconds[i]), int(count[i]))
        for i in best
        if seconds[i] > 0
    )


def _launching(trace: Trace) -> Ints:
    """Return the host rows of threads that launch GPU work."""
    launch = trace.launch[trace.gpu]
    threads = np.unique(trace.columns.thread[launch[launch >= 0]])
    return trace.host[np.isin(trace.columns.thread[trace.host], threads)]


def _host_reasons(trace: Trace, late: IntervalSet, apart: dict[str, IntervalSet]) -> list[TimePart]:
    """Attribute the time in which the host was late; inner causes take precedence.

    ``apart`` are intervals with their own cause, unless the host waited, loaded data or allocated
    memory meanwhile.
    """
    left, out = late, []
    covers = {
        what: IntervalSet.of(trace.columns.start[rows], trace.end[rows])
        for what, rows in host_rows(trace).items()
    }
    # A wait, a load or an allocation is the cause wherever it happens; only then does where in the
    # step it is decide.
    ordered = {what: covers[what] for what in (SYNC, LOADING, ALLOCATING)}
    ordered |= apart | covers
    for what, cover in ordered.items():
        spent = left & cover
        out.append(TimePart(what, spent.seconds, len(spent.start)))
        left = left - spent
    out.append(TimePart(PYTHON, left.seconds, len(left.start)))
    return out


def host_rows(trace: Trace) -> dict[str, Ints]:
    """Return the host rows of each cause, for threads that launch GPU work."""
    rows = _launching(trace)
    kind = trace.columns.kind[rows]
    calls, others = rows[kind == EventKind.RUNTIME], rows[kind != EventKind.RUNTIME]
    return {
        SYNC: calls[trace.named(calls, synchronises)],
        LOADING: others[trace.named(others, lambda name: _LOADS.search(name) is not None)],
        ALLOCATING: calls[trace.named(calls, lambda name: _ALLOCATES.search(name) is not None)],
        LAUNCHING: calls,
        OPERATORS: rows[kind == EventKind.OP],
    }


def synchronises(name: str) -> bool:
    """Return whether a runtime call waits for the GPU.

    >>> synchronises("cudaStreamSynchronize"), synchronises("cudaMemcpyAsync")
    (True, False)
    """
    return _SYNCHRONISES.search(name) is not None
