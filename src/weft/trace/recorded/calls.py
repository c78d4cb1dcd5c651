"""What a host asked of a device in each step, in order: the calls a replay is made of.

Three kinds of calls matter: those that put work on a stream, those that make a stream wait for
another, and those that make the host wait. All others are time that the host takes between them.
Threads of a process take turns (the forward and the backward thread of autograd), so the calls of
all of them, by time, are one sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.timeline.intervals import IntervalSet
from weft.trace import EventKind, StepMark, Trace
from weft.trace.analysis.steps import TraceSteps, busiest_stream, steps_of
from weft.trace.recorded.occupancy import waves
from weft.trace.trace import whole_number

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NO_STREAM = -1
BACKLOG = (
    "before the window"  # stands for the calls that launched what a profiler came too late for
)
_APART = 0.05  # of a period: marks of the profiler follow each other within less
_WAITS = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")


class StreamWait(NamedTuple):
    """A wait of a stream for what another was given before an event was recorded on it."""

    stream: int
    other: int
    recorded: float  # when the host recorded the event


@dataclass(frozen=True)
class Calls:
    """The calls of one step as columns; times are NaN where a call put nothing on a stream.

    ``mark`` is the step, ``until`` when the next one begins (NaN: it was not recorded). ``op`` is
    the innermost operator around a call, ``same_op`` says that it is that of the call before.
    ``front`` is when the GPU event in front of it on its stream ended, in whatever step (-inf: it
    is the first). ``full`` are the moments at which some kernel filled the device. ``waits`` say
    which stream waits for which, where the profiler recorded that (Kineto's cuda_sync events).
    """

    mark: StepMark
    until: float
    name: tuple[str, ...]  # of what was launched, or of the call
    call: tuple[str, ...]
    op: tuple[str, ...]
    same_op: Bools
    thread: Ints
    start: Floats
    end: Floats
    row: Ints  # of the GPU event in the trace, or -1
    kind: Ints  # of the GPU event
    stream: Ints
    gpu_start: Floats
    gpu_end: Floats
    waves: Floats  # how often its workgroups fill the device
    front: Floats
    full: IntervalSet
    waits: tuple[StreamWait | None, ...]

    def __len__(self) -> int:
        return len(self.name)

    @property
    def launches(self) -> Ints:
        """The numbers of calls that put work on a stream."""
        return np.flatnonzero(self.row >= 0)

    @property
    def own_launches(self) -> Ints:
        """Those of them that the step itself made: not what was left to do when it began."""
        found = self.launches
        return found[[self.call[number] != BACKLOG for number in found.tolist()]]

    @property
    def seconds(self) -> Floats:
        """How long what was launched took."""
        return self.gpu_end - self.gpu_start

    @property
    def signature(self) -> tuple[tuple[str, str, int], ...]:
        """What was asked, without times: equal steps have equal ones."""
        return tuple(zip(self.call, self.name, self.stream.tolist(), strict=True))

    @property
    def lag(self) -> float:
        """How far the device was behind the host at the end."""
        return float(np.nanmax(self.gpu_end) - self.end[-1])


def stand_apart(steps: Sequence[Calls]) -> bool:
    """Return whether marks end long before the next step begins: there a wall is no period."""
    followed = [step for step in steps if np.isfinite(step.until)]
    between = sum(step.until - step.mark.end for step in followed)
    return between > _APART * sum(step.until - step.mark.start for step in followed)


def is_stream_wait(call: str) -> bool:
    """Return whether a call makes a stream wait for another."""
    return call.startswith(_WAITS)


def is_graph_launch(call: str) -> bool:
    """Return whether a call launches a whole graph: inside it no call shows what waits for what.

    >>> is_graph_launch("cudaGraphLaunch"), is_graph_launch("cudaLaunchKernel")
    (True, False)
    """
    return "GraphLaunch" in call


def is_host_wait(call: str) -> bool:
    """Find the calls that only wait.

    >>> is_host_wait("cudaStreamSynchronize"), is_host_wait("cudaLaunchKernel")
    (True, False)
    """
    return "Synchronize" in call


def calls_of(trace: Trace) -> list[Calls]:
    """Return the calls of every step that launched something, in order."""
    rows, launched = _sequence(trace)
    marks = _host_marks(trace, steps_of(trace)) or _whole(trace, rows)
    if len(marks) == 1:
        return _Table(trace).alone(marks[0], rows, launched)
    begins = np.array([mark.start for mark in marks] + [np.inf])
    when = trace.columns.start[rows]
    table = _Table(trace)
    out = []
    for number, mark in enumerate(marks):
        until = begins[number + 1]
        inside = (when >= mark.start) & (when < (mark.end if np.isinf(until) else until))
        if (launched[inside] >= 0).any():
            follows = float(until) if np.isfinite(until) else np.nan
            out.append(table.calls(mark, follows, rows[inside], launched[inside]))
    return out


def _host_marks(trace: Trace, steps: TraceSteps) -> tuple[StepMark, ...]:
    """Return the steps on the host: from the call that launched the first kernel of each.

    Steps that were found by how kernels repeat are cut on the device, which may be behind.
    """
    if not steps.found:
        return steps.marks
    mine = trace.gpu[trace.columns.stream[trace.gpu] == busiest_stream(trace)]
    cuts = np.array([mark.start for mark in steps.marks] + [steps.marks[-1].end])
    place = np.searchsorted(trace.columns.start[mine], cuts)
    launch = trace.launch[mine[np.minimum(place, len(mine) - 1)]]
    called = trace.columns.start[launch]
    if (launch < 0).any() or (np.diff(called) <= 0).any():
        return steps.marks
    edges = pairwise(called.tolist())
    return tuple(StepMark(m.name, *edge) for m, edge in zip(steps.marks, edges, strict=True))


def _whole(trace: Trace, rows: Ints) -> tuple[StepMark, ...]:
    """Return the whole file as one step, for traces without marks and without a period."""
    if not len(rows):
        return ()
    columns = trace.columns
    return (StepMark("all", float(columns.start[rows].min()), float(trace.end[rows].max()) + 1e-9),)


def _sequence(trace: Trace) -> tuple[Ints, Ints]:
    """Return the runtime calls that matter by time, each with what it launched or -1.

    A call that launched several (a graph) stands there once for each of them.
    """
    columns = trace.columns
    gpu = trace.gpu[trace.launch[trace.gpu] >= 0]
    runtime = np.flatnonzero(columns.kind == EventKind.RUNTIME)
    wanted = np.array([is_stream_wait(n) or is_host_wait(n) for n in trace.names] or [False])
    others = runtime[wanted[columns.name[runtime]]]
    others = others[np.isin(columns.thread[others], _launching(trace, gpu))]
    others = others[~np.isin(others, trace.launch[gpu])]
    rows = np.concatenate((trace.launch[gpu].astype(np.int64), others))
    launched = np.concatenate((gpu, np.full(len(others), -1)))
    # At one moment of a coarse clock a wait comes first: a launch takes longer than that.
    order = np.lexsort((np.arange(len(rows)), launched >= 0, columns.start[rows]))
    return rows[order], launched[order]


def _launching(trace: Trace, gpu: Ints) -> Ints:
    """Return the threads that launch work; a watchdog's waits delay no work."""
    found: Ints = np.unique(trace.columns.thread[trace.launch[gpu]])
    return found


def _fronts(trace: Trace) -> Floats:
    """Return for every row when the GPU event in front of it on its stream ended, or -inf."""
    rows, stream = trace.gpu, trace.columns.stream[trace.gpu]
    out = np.full(len(trace), -np.inf)
    for each in np.unique(stream).tolist():
        mine = rows[stream == each]
        out[mine[1:]] = np.maximum.accumulate(trace.end[mine])[:-1]
    return out


def _stream_waits(trace: Trace) -> dict[int, StreamWait]:
    """Return by row of a runtime call which stream it made wait for which, where that is told."""
    columns = trace.columns
    calls = np.flatnonzero((columns.kind == EventKind.RUNTIME) & (columns.correlation >= 0))
    row_of = dict(zip(columns.correlation[calls].tolist(), calls.tolist(), strict=True))
    found = {}
    for row in np.flatnonzero((columns.kind == EventKind.SYNC) & (columns.detail >= 0)).tolist():
        detail = trace.detail_of(row)
        other = whole_number(detail.get("wait_on_stream"))
        record = row_of.get(whole_number(detail.get("wait_on_cuda_event_record_corr_id")) or -1)
        call = row_of.get(int(columns.correlation[row]))
        if other is not None and record is not None and call is not None:
            when = float(columns.start[record])
            found[call] = StreamWait(int(columns.stream[row]), other, when)
    return found


class _Table:
    """Looks up what columns of calls need, names once."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.waves = waves(trace)
        self.front = _fronts(trace)
        self.waits = _stream_waits(trace)
        filling = trace.gpu[self.waves[trace.gpu] > 1]
        self.full = IntervalSet.of(trace.columns.start[filling], trace.end[filling])

    def calls(self, mark: StepMark, until: float, rows: Ints, launched: Ints) -> Calls:
        trace, columns = self.trace, self.trace.columns
        there = launched >= 0
        shown = np.where(there, launched, rows)
        # The innermost operator or named range around each call.
        kind, parent = self.trace.columns.kind, self.trace.parent
        around = parent[rows].astype(np.int64)
        while (
            other := (around >= 0) & ~np.isin(kind[around], (EventKind.OP, EventKind.ANNOTATION))
        ).any():
            around[other] = parent[around[other]]
        ops = [trace.name_of(row) if row >= 0 else "" for row in around.tolist()]
        again = np.diff(rows, prepend=-1) == 0  # further work of one call
        return Calls(
            mark=mark,
            until=until,
            name=tuple(trace.name_of(row) for row in shown.tolist()),
            call=tuple(trace.name_of(row) for row in rows.tolist()),
            op=tuple(ops),
            same_op=(np.diff(around, prepend=-2) == 0) & (around >= 0),
            thread=columns.thread[rows].astype(np.int64),
            start=np.where(again, trace.end[rows], columns.start[rows]),
            end=trace.end[rows],
            row=launched,
            kind=np.where(there, columns.kind[shown], -1).astype(np.int64),
            stream=np.where(there, columns.stream[shown], NO_STREAM).astype(np.int64),
            gpu_start=np.where(there, columns.start[shown], np.nan),
            gpu_end=np.where(there, trace.end[shown], np.nan),
            waves=np.where(there, self.waves[shown], 0.0),
            front=np.where(there, self.front[shown], -np.inf),
            full=self.full,
            waits=tuple(self.waits.get(row) for row in rows.tolist()),
        )

    def alone(self, mark: StepMark, rows: Ints, launched: Ints) -> list[Calls]:
        """Return the only step of a trace, with what was still to be done when it began in front.

        The profiler itself waits for that work as it starts, inside the first step.
        """
        trace = self.trace
        when = trace.columns.start[rows]
        inside = (when >= mark.start) & (when < mark.end)
        if not (launched[inside] >= 0).any():
            return []
        calls = self.calls(mark, np.nan, rows[inside], launched[inside])
        left = trace.gpu[(trace.launch[trace.gpu] < 0) & (trace.end[trace.gpu] > mark.start)]
        left = left[trace.columns.start[left] < np.nanmin(calls.gpu_start)]
        return [self._behind(left, calls)] if len(left) else [calls]

    def _behind(self, left: Ints, calls: Calls) -> Calls:
        """Put work that was launched earlier in front of calls: it costs the host nothing."""
        columns, size, zero = self.trace.columns, len(left), calls.mark.start
        names = tuple(self.trace.name_of(row) for row in left.tolist())
        front: dict[str, Any] = {
            "same_op": np.zeros(size, bool),
            "thread": np.full(size, calls.thread[0]),
            "start": np.full(size, zero),
            "end": np.full(size, zero),
            "row": left,
            "kind": columns.kind[left].astype(np.int64),
            "stream": columns.stream[left].astype(np.int64),
            "gpu_start": np.maximum(columns.start[left], zero),
            "gpu_end": self.trace.end[left],
            "waves": self.waves[left],
            "front": np.full(size, -np.inf),
        }
        joined: dict[str, Any] = {
            key: np.concatenate((own, getattr(calls, key))) for key, own in front.items()
        }
        texts: dict[str, tuple[Any, ...]] = {"name": names, "call": (BACKLOG,) * size}
        texts |= {"op": ("",) * size, "waits": (None,) * size}
        joined |= {key: own + getattr(calls, key) for key, own in texts.items()}
        return replace(calls, **joined)
