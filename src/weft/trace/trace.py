"""Trace: what a profiler recorded of one rank, as columns.

Rows are complete events in file order. Times are seconds from ``origin_ns``, the time of the first
event on the clock of the host. Flow, instant and metadata events are counted in ``num_events`` but
are not rows: their information is in ``correlation``.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft import _core
from weft.units import brief

if TYPE_CHECKING:
    from weft.trace.formats.graph import Graph

Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MOST = 2**53  # largest count: what a double holds exactly
_YEAR = 366 * 86400.0  # seconds
_TICK = 1e-6  # seconds of the clocks of old profilers
PROFILER_STEP = re.compile("ProfilerStep#")
# What servers call a forward pass: vLLM (gpu_worker.py), TensorRT-LLM (PyExecutor), SGLang.
_SERVER_PASS = re.compile(
    r"(execute_)?context_\d+\(\d+\)_generation_\d+\(\d+\)|\[Executor\] _forward_step \d+|step\["
)


class EventKind(IntEnum):
    """The kind of a row. Kernels, copies and memsets are the *GPU events*."""

    KERNEL = 0
    COPY = 1
    SET = 2
    RUNTIME = 3  # a call of the CUDA or HIP runtime
    OP = 4  # a PyTorch operator, on the host
    ANNOTATION = 5  # a range named by the user or by PyTorch, on the host
    GPU_ANNOTATION = 6  # the same, over the kernels launched in it
    PYTHON = 7
    SYNC = 8  # a wait of a stream or of the host
    OTHER = 9


class StepMark(NamedTuple):
    """A profiler step on the host: its name and seconds."""

    name: str
    start: float
    end: float

    @property
    def wall(self) -> float:
        """Its duration in seconds."""
        return self.end - self.start


@dataclass(frozen=True)
class TraceColumns:
    """The columns of a trace; -1 means that an event has no value."""

    __repr__ = brief

    kind: NDArray[np.int8]
    name: SmallInts
    start: Floats
    duration: Floats
    thread: SmallInts
    stream: SmallInts
    device: SmallInts
    correlation: Ints
    external: Ints
    nbytes: Ints
    sequence: Ints
    function: Ints
    detail: SmallInts

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class Trace:
    """One rank's file. ``losses`` are notes on what could not be read."""

    __repr__ = brief

    path: str
    columns: TraceColumns
    names: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]  # process and thread, as written in the file
    details: tuple[bytes, ...] = ()  # JSON objects: the arguments that weft keeps
    num_events: int = 0
    origin_ns: int = 0
    format: str = "kineto"
    rank: int | None = None
    world_size: int | None = None
    device: str = ""
    num_units: int | None = None  # compute units of the device
    about: dict[str, Any] = field(default_factory=dict)  # other metadata of the file
    losses: tuple[str, ...] = ()
    graph: "Graph | None" = None  # the execution trace of the same rank, if it was given
    nodes: SmallInts | None = None  # the node of each row in that graph, or -1
    is_whole: bool = True  # False: only the collectives are left

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def end(self) -> Floats:
        """The end of each row."""
        out: Floats = self.columns.start + self.columns.duration
        return out

    @cached_property
    def gpu(self) -> Ints:
        """Rows of GPU events, by start."""
        rows = np.flatnonzero(self.columns.kind <= EventKind.SET)
        return rows[np.argsort(self.columns.start[rows], kind="stable")]

    @cached_property
    def host(self) -> Ints:
        """Rows of host threads: operators, ranges, runtime calls, Python."""
        kind = self.columns.kind
        return np.flatnonzero(
            ((kind >= EventKind.RUNTIME) & (kind <= EventKind.ANNOTATION))
            | (kind == EventKind.PYTHON)
        )

    @cached_property
    def parent(self) -> SmallInts:
        """Row of the innermost host row around each host row, or -1."""
        rows = self.host
        inner = _core.nest(self.columns.thread[rows], self.columns.start[rows], self.end[rows])
        out = np.full(len(self), -1, np.int32)
        out[rows] = np.where(inner >= 0, rows[inner], -1)
        return out

    @cached_property
    def launch(self) -> SmallInts:
        """Row of the runtime call that launched each GPU event; -1 if before the window."""
        calls = np.flatnonzero(
            (self.columns.kind == EventKind.RUNTIME) & (self.columns.correlation >= 0)
        )
        keys = self.columns.correlation[calls]
        order = np.argsort(keys, kind="stable")
        out = np.full(len(self), -1, np.int32)
        if len(calls):
            wanted = self.columns.correlation[self.gpu]
            place = np.minimum(np.searchsorted(keys[order], wanted), len(calls) - 1)
            found = calls[order[place]]
            hit = (self.columns.correlation[found] == wanted) & (wanted >= 0)
            out[self.gpu] = np.where(hit, found, -1)
        return out

    @cached_property
    def marks(self) -> tuple[StepMark, ...]:
        """The profiler's steps on the host, by time; without any, the passes of a server."""
        kinds = EventKind.ANNOTATION, EventKind.OP, EventKind.PYTHON
        steps = _distinct(self._marked(PROFILER_STEP.match, kinds))
        return steps or _distinct(self._marked(_SERVER_PASS.match, (EventKind.ANNOTATION,)))

    def _marked(self, fits: Callable[[str], Any], kinds: Sequence[EventKind]) -> Iterator[StepMark]:
        names = [i for i, name in enumerate(self.names) if fits(name)]
        of_kind = np.isin(self.columns.kind, [int(kind) for kind in kinds])
        for row in np.flatnonzero(np.isin(self.columns.name, names) & of_kind).tolist():
            yield StepMark(self.name_of(row), float(self.columns.start[row]), float(self.end[row]))

    def name_of(self, row: int) -> str:
        """Return the name of a row."""
        return self.names[int(self.columns.name[row])]

    def named(self, rows: Ints, fits: Callable[[str], bool]) -> Bools:
        """Return whether the names of rows satisfy ``fits``; each name is tested once."""
        used, place = np.unique(self.columns.name[rows], return_inverse=True)
        known = np.array([fits(self.names[name]) for name in used.tolist()], bool)
        return known[place]

    def detail_of(self, row: int) -> dict[str, Any]:
        """Return the arguments of a row that weft keeps: shapes, types, launches, collectives."""
        ident = int(self.columns.detail[row])
        if ident < 0:
            return {}
        try:
            found = msgspec.json.decode(self.details[ident])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def ancestors(self, row: int) -> list[int]:
        """Return the host rows around a host row, innermost first."""
        out = []
        while (row := int(self.parent[row])) >= 0:
            out.append(row)
        return out

    def moved(self, seconds: float, drift: float = 0.0, *, origin_ns: int) -> "Trace":
        """Return the trace on another clock, which counts from ``origin_ns``.

        Events are later by ``seconds``, and by ``drift`` more per second.
        """
        start = self.columns.start * (1 + drift) + seconds
        out = replace(self, columns=replace(self.columns, start=start), origin_ns=origin_ns)
        for known in ("gpu", "host", "parent", "launch"):  # the order of events does not change
            if known in self.__dict__:
                out.__dict__[known] = self.__dict__[known]
        return out


def _distinct(marks: Iterable[StepMark]) -> tuple[StepMark, ...]:
    """Return steps by time, each once; the second and later ones of a name get a number.

    One step may be marked twice. Several have one name where they are counted anew in every epoch,
    and passes of a server where their requests have equal shapes.
    """
    last: dict[str, StepMark] = {}
    count: Counter[str] = Counter()
    found = []
    for mark in sorted(marks, key=lambda each: (each.start, -each.end)):
        before = last.get(mark.name)
        if before is not None and mark.start < max(before.end, before.start + _TICK):
            continue
        last[mark.name] = mark
        count[mark.name] += 1
        number = count[mark.name]
        found.append(mark._replace(name=f"{mark.name} ({number})") if number > 1 else mark)
    return tuple(found)


def whole_number(value: Any) -> int | None:
    """Return a value of a file if it is a valid non-negative integer, otherwise None."""
    counts = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
    return value if counts else None


def possible_times(start: Floats, duration: Floats) -> Bools:
    """Return whether times in seconds are plausible: within a year of most others.

    Profilers write implausible times for events whose end or clock is unknown.
    """
    middle = np.median(start) if len(start) else 0.0
    out: Bools = (np.abs(start - middle) <= _YEAR) & (duration <= _YEAR)
    return out


def skipped_note(possible: Bools) -> list[str]:
    """Return a note on events skipped because of invalid timestamps."""
    count = int((~possible).sum())
    return [f"skipped {count} events with invalid timestamps"] if count else []


class TraceEvent(NamedTuple):
    """One event of a reader that builds a trace event by event; -1 means that it has no value.

    Times are nanoseconds, ``thread`` is process and thread as the file writes them, and ``detail``
    a JSON object with the arguments that weft keeps.
    """

    kind: EventKind
    name: str
    start: int
    end: int
    thread: tuple[str, str] = ("0", "0")
    device: int = -1
    stream: int = -1
    correlation: int = -1
    nbytes: int = -1
    detail: bytes = b""


def trace_of_events(
    events: Sequence[TraceEvent], *, losses: Sequence[str] = (), zero_ns: int = 0, **fields: Any
) -> Trace:
    """Build a trace; events with invalid timestamps are skipped, with a note.

    ``zero_ns`` is added to the times of the events, ``fields`` are other fields of the trace.
    """
    start = np.array([event.start for event in events], np.int64)
    end = np.array([event.end for event in events], np.int64)
    # As floats: the difference of two words of a damaged file may not fit into a word.
    begin = start.astype(np.float64) * 1e-9
    possible = possible_times(begin, end.astype(np.float64) * 1e-9 - begin)
    kept = [event for event, keep in zip(events, possible.tolist(), strict=True) if keep]
    start, end = start[possible], end[possible]
    origin = int(start.min()) if kept else 0

    def numbered(values: list[Any]) -> tuple[SmallInts, tuple[Any, ...]]:
        place = {value: number for number, value in enumerate(dict.fromkeys(values))}
        return np.array([place[value] for value in values], np.int32), tuple(place)

    def column(key: str) -> Ints:
        return np.array([getattr(event, key) for event in kept], np.int64)

    name, names = numbered([event.name for event in kept])
    thread, threads = numbered([event.thread for event in kept])
    # The first detail is the empty one, which no row refers to.
    detail, details = numbered([b"", *(event.detail for event in kept)])
    unset = np.full(len(kept), -1, np.int64)
    columns = TraceColumns(
        kind=column("kind").astype(np.int8),
        name=name,
        start=(start - origin).astype(np.float64) * 1e-9,
        duration=np.maximum(end - start, 0).astype(np.float64) * 1e-9,
        thread=thread,
        stream=column("stream").astype(np.int32),
        device=column("device").astype(np.int32),
        correlation=column("correlation"),
        external=unset,
        nbytes=column("nbytes"),
        sequence=unset,
        function=unset,
        detail=detail[1:] - 1,
    )
    return Trace(
        columns=columns,
        names=names,
        threads=threads,
        details=details[1:],
        origin_ns=zero_ns + origin,
        losses=(*losses, *skipped_note(possible)),
        **({"num_events": len(events)} | fields),
    )
