"""Trace: what a profiler saw of one rank, as columns.

Rows are complete events in the order of the file. Times are seconds from ``origin_ns``, the time
of the first event on the clock of the host. Arrows, instants and labels are counted in
``num_events`` but are no rows: what they say stands in ``correlation``.
"""

from collections.abc import Callable
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
    from weft.trace.graph import Graph

Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MOST = 2**53  # of anything that is counted: what a float holds exactly
_YEAR = 366 * 86400.0  # seconds


class Kind(IntEnum):
    """What a row is. Kernels, copies and sets are what a GPU does: the *GPU events*."""

    KERNEL = 0
    COPY = 1
    SET = 2
    RUNTIME = 3  # a call of CUDA's or HIP's runtime
    OP = 4  # an operator of PyTorch, on the host
    ANNOTATION = 5  # a range named by the user or by PyTorch, on the host
    GPU_ANNOTATION = 6  # the same, over the kernels launched in it
    PYTHON = 7
    SYNC = 8  # a wait of a stream or of the host
    OTHER = 9


class Mark(NamedTuple):
    """A profiler step on the host: its name and seconds."""

    name: str
    start: float
    end: float

    @property
    def wall(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class Columns:
    """The rows of a trace. -1 stands where an event does not say."""

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
    """One rank's file. ``losses`` are sentences about what could not be read of it."""

    __repr__ = brief

    path: str
    columns: Columns
    names: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]  # process and thread, as the file writes them
    details: tuple[bytes, ...] = ()  # JSON objects: the arguments weft keeps
    num_events: int = 0
    origin_ns: int = 0
    format: str = "kineto"
    rank: int | None = None
    world_size: int | None = None
    device: str = ""
    num_units: int | None = None  # compute units of the device
    about: dict[str, Any] = field(default_factory=dict)  # what else the file says of itself
    losses: tuple[str, ...] = ()
    graph: "Graph | None" = None  # the execution trace of the same rank, if it was given
    nodes: SmallInts | None = None  # the node of each row there, or -1

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def end(self) -> Floats:
        """When each row ended."""
        out: Floats = self.columns.start + self.columns.duration
        return out

    @cached_property
    def gpu(self) -> Ints:
        """Rows of GPU events, by start."""
        rows = np.flatnonzero(self.columns.kind <= Kind.SET)
        return rows[np.argsort(self.columns.start[rows], kind="stable")]

    @cached_property
    def host(self) -> Ints:
        """Rows of what threads of the host did: operators, ranges, runtime calls, Python."""
        kind = self.columns.kind
        return np.flatnonzero(
            ((kind >= Kind.RUNTIME) & (kind <= Kind.ANNOTATION)) | (kind == Kind.PYTHON)
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
        """Row of the runtime call that launched each GPU event, or -1: before the window."""
        calls = np.flatnonzero(
            (self.columns.kind == Kind.RUNTIME) & (self.columns.correlation >= 0)
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
    def marks(self) -> tuple[Mark, ...]:
        """The profiler's steps on the host, by time."""
        kinds = Kind.ANNOTATION, Kind.OP, Kind.PYTHON
        names = [i for i, name in enumerate(self.names) if name.startswith("ProfilerStep#")]
        rows = np.flatnonzero(
            np.isin(self.columns.name, names) & np.isin(self.columns.kind, [int(k) for k in kinds])
        )
        found = {
            self.name_of(row): Mark(
                self.name_of(row), float(self.columns.start[row]), float(self.end[row])
            )
            for row in rows.tolist()
        }
        return tuple(sorted(found.values(), key=lambda mark: mark.start))

    def name_of(self, row: int) -> str:
        """Give the name of a row."""
        return self.names[int(self.columns.name[row])]

    def named(self, rows: Ints, fits: Callable[[str], bool]) -> Bools:
        """Say of rows whether their names fit; each name is looked at once."""
        used, place = np.unique(self.columns.name[rows], return_inverse=True)
        known = np.array([fits(self.names[name]) for name in used.tolist()], bool)
        return known[place]

    def detail_of(self, row: int) -> dict[str, Any]:
        """Give the arguments of a row that weft keeps: shapes, types, launches, collectives."""
        ident = int(self.columns.detail[row])
        if ident < 0:
            return {}
        try:
            found = msgspec.json.decode(self.details[ident])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def ancestors(self, row: int) -> list[int]:
        """Give the host rows around a host row, from the inside out."""
        out = []
        while (row := int(self.parent[row])) >= 0:
            out.append(row)
        return out

    def moved(self, seconds: float, drift: float = 0.0, *, origin_ns: int) -> "Trace":
        """Give the trace on the clock of another, which counts from ``origin_ns``.

        Events are later by ``seconds``, and by ``drift`` more each second.
        """
        start = self.columns.start * (1 + drift) + seconds
        out = replace(self, columns=replace(self.columns, start=start), origin_ns=origin_ns)
        for known in ("gpu", "host", "parent", "launch"):  # the order of events stays as it is
            if known in self.__dict__:
                out.__dict__[known] = self.__dict__[known]
        return out


def whole_number(value: Any) -> int | None:
    """Give a value of a file if it is a whole number that can count something."""
    counts = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
    return value if counts else None


def possible_times(start: Floats, duration: Floats) -> Bools:
    """Say of events, in seconds, whether they can have been seen: within a year of most others.

    Profilers write such for events whose end, or whose clock, they did not know.
    """
    middle = np.median(start) if len(start) else 0.0
    out: Bools = (np.abs(start - middle) <= _YEAR) & (duration <= _YEAR)
    return out


def left_out(possible: Bools) -> list[str]:
    """Say how many events were left out because of their times."""
    count = int((~possible).sum())
    return [f"{count} events have times that cannot be and were left out"] if count else []
