"""Timeline: spans as columns, and the quantities derived from them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.result_tables import ResultTables, Tables
from weft.schedule import CommandKind, CommandTable, queue_kind
from weft.timeline import causes
from weft.timeline.intervals import (
    GroupedIntervals,
    GroupedOverlap,
    covered_by_group,
    overlap_by_group,
)
from weft.timeline.span_columns import columns_of, keep

Basis = Literal["predicted", "measured", "published"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOVES = (
    CommandKind.COPY,
    CommandKind.BROADCAST,
    CommandKind.SWAP,
    CommandKind.REDUCE,
    CommandKind.ENCODE,
    CommandKind.DECODE,
)


class Activity(IntEnum):
    """What a rank does during a span."""

    CONTROL = 0
    COMPUTATION = 1
    COMMUNICATION = 2
    WAITING = 3


class Span(NamedTuple):
    """One command in time."""

    rank: int
    queue: str
    lane: int
    id: int
    kind: CommandKind
    name: str
    start: float
    end: float
    nbytes: int
    joules: float


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(ResultTables):
    """Spans in seconds after time zero; prelaunched commands are before it.

    ``ranks`` are those that have spans; each of them represents ``represents`` ranks, including
    itself (simulations of symmetric schedules keep one rank of each class).
    """

    schedule: str
    platform: str
    basis: Basis
    num_ranks: int
    ranks: Ints
    represents: Ints
    queues: tuple[str, ...]
    names: tuple[str, ...]

    rank: NDArray[np.int32]
    queue: NDArray[np.int32]  # index into queues
    lane: NDArray[np.int32]  # -1: the queue itself
    id: NDArray[np.int32]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]  # index into names
    start: Floats
    end: Floats
    nbytes: Ints  # written
    joules: Floats
    parent: Ints  # the span of the enclosing Launch or Call, or -1
    flag: Ints  # of a Signal, Wait or held Submit: rank << 32 | index, or -1
    count: Ints
    target: Ints  # of a Submit: rank << 32 | queue, or -1
    fed: NDArray[np.int32]

    @classmethod
    def from_table(
        cls,
        table: CommandTable,
        start: ArrayLike,
        end: ArrayLike,
        *,
        basis: Basis,
        platform: str = "",
        joules: ArrayLike | None = None,
        represents: ArrayLike | None = None,
        origin: float | None = None,
    ) -> "Timeline":
        """Build a timeline from the rows of ``table`` and their times; NaN starts did not run.

        ``origin`` is time zero: the first start, or the end of the last held Submit.
        """
        energy = None if joules is None else np.asarray(joules, np.float64)
        times = np.asarray(start, np.float64), np.asarray(end, np.float64)
        columns = columns_of(table, *times, energy)
        zero = _time_zero(columns) if origin is None else origin
        if zero:
            columns |= {"start": columns["start"] - zero, "end": columns["end"] - zero}
        ranks = np.asarray(table.ranks, np.int64)
        weights = np.ones(len(ranks), np.int64) if represents is None else np.asarray(represents)
        order = np.argsort(ranks, kind="stable")
        return cls(
            schedule=table.schedule.name,
            platform=platform,
            basis=basis,
            num_ranks=table.schedule.num_ranks,
            ranks=ranks[order],
            represents=weights[order].astype(np.int64),
            **columns,
        )

    def tables(self) -> Tables:
        """Return the tables of a timeline: ranks, then spans."""
        columns = ("computation", "communication", "exposed", "waiting")
        return {
            "ranks": lambda: [
                {"rank": rank, **{name: float(getattr(self, name)[n]) for name in columns}}
                for n, rank in enumerate(self.ranks.tolist())
            ],
            "spans": lambda: (
                {**span._asdict(), "kind": span.kind.name.lower()} for span in self.spans()
            ),
        }

    def __repr__(self) -> str:
        return (
            f"<Timeline of {self.schedule} on {self.platform or '?'}: {self.num_spans} spans of "
            f"{len(self.ranks)} ranks, {self.basis} {self.makespan:.6g} s>"
        )

    @property
    def num_spans(self) -> int:
        """The number of commands that ran."""
        return len(self.start)

    @cached_property
    def makespan(self) -> float:
        """Seconds from time zero to the last end."""
        return float(self.end.max(initial=0.0))

    @property
    def seconds(self) -> float:
        """The makespan."""
        return self.makespan

    @cached_property
    def total_joules(self) -> float:
        """The energy of all ranks, including represented ones, in joules."""
        return float((self.joules * self.represents[self._rank_number]).sum())

    def span(self, number: int) -> Span:
        """Return one span as a value."""
        return Span(
            int(self.rank[number]),
            self.queues[self.queue[number]],
            int(self.lane[number]),
            int(self.id[number]),
            CommandKind(self.kind[number]),
            self.names[self.name[number]],
            float(self.start[number]),
            float(self.end[number]),
            int(self.nbytes[number]),
            float(self.joules[number]),
        )

    def spans(self) -> Iterator[Span]:
        """Yield every span as a value, in the order of the table."""
        return (self.span(number) for number in range(self.num_spans))

    def of(
        self,
        *,
        rank: int | tuple[int, ...] | None = None,
        queue: str | None = None,
        kind: CommandKind | tuple[CommandKind, ...] | None = None,
    ) -> "Timeline":
        """Return the spans of these ranks, queues and kinds; ``copy`` selects copy0, copy1, .."""
        chosen = np.ones(self.num_spans, bool)
        ranks, represents = self.ranks, self.represents
        if rank is not None:
            wanted = np.isin(ranks, rank)
            ranks, represents = ranks[wanted], represents[wanted]
            chosen &= np.isin(self.rank, rank)
        if queue is not None:
            chosen &= np.isin(self.queue, self._queue_numbers(queue))
        if kind is not None:
            chosen &= np.isin(self.kind, kind)
        rows = {name: getattr(self, name) for name in _ROWS}
        return replace(self, ranks=ranks, represents=represents, **keep(rows, chosen))

    @cached_property
    def activity(self) -> NDArray[np.uint8]:
        """The activity of each span (see Activity).

        A Kernel computes, unless it is work of the host. Commands that move data communicate, and
        so does a Launch without a Kernel or a Call that only moves data, including its waits.
        """
        kind = self.kind
        moves = np.isin(kind, MOVES)
        mixed = self._has_below(kind == CommandKind.KERNEL)
        around = (kind == CommandKind.LAUNCH) | (kind == CommandKind.CALL) & self._has_below(moves)
        result = np.full(self.num_spans, Activity.CONTROL, np.uint8)
        by_host = np.isin(self.queue, self._queue_numbers("host"))
        result[(kind == CommandKind.KERNEL) & ~by_host] = Activity.COMPUTATION
        result[moves | around & ~mixed] = Activity.COMMUNICATION
        result[kind == CommandKind.WAIT] = Activity.WAITING
        return result

    @property
    def computation(self) -> Floats:
        """Seconds of computation per rank, in the order of ``ranks``."""
        return self._shares.first + self._shares.both

    @property
    def communication(self) -> Floats:
        """Seconds of communication per rank, in the order of ``ranks``."""
        return self._shares.second + self._shares.both

    @property
    def exposed(self) -> Floats:
        """Seconds of communication per rank that no computation of the same rank overlaps."""
        return self._shares.second

    @property
    def overlap(self) -> Floats:
        """Seconds per rank in which it computes and communicates."""
        return self._shares.both

    @cached_property
    def waiting(self) -> Floats:
        """Seconds per rank in which it waits and neither computes nor moves data."""
        waits = self._by_rank(self.kind == CommandKind.WAIT)
        busy = np.isin(self.activity, (Activity.COMPUTATION, Activity.COMMUNICATION))
        works = self._by_rank(busy & np.isin(self.kind, (CommandKind.KERNEL, *MOVES)))
        return overlap_by_group(waits, works, len(self.ranks)).first

    def busy(self, queue: str | None = None) -> dict[tuple[int, str], float]:
        """Return for each (rank, queue) the seconds in which it does not wait.

        A Launch holds its compute units while it waits, so it counts as busy throughout.
        """
        chosen = ~np.isin(self.kind, (CommandKind.WAIT, CommandKind.CALL)) & (self.lane < 0)
        if queue is not None:
            chosen &= np.isin(self.queue, self._queue_numbers(queue))
        place = self._rank_number * len(self.queues) + self.queue
        found, group = np.unique(place[chosen], return_inverse=True)
        seconds = covered_by_group(
            GroupedIntervals(group, self.start[chosen], self.end[chosen]), len(found)
        )
        ranks, queues = self.ranks[found // len(self.queues)], found % len(self.queues)
        return {
            (rank, self.queues[number]): value
            for rank, number, value in zip(
                ranks.tolist(), queues.tolist(), seconds.tolist(), strict=True
            )
        }

    def critical_path(self) -> tuple[int, ...]:
        """Return the spans that determine the makespan: each waited for the previous one."""
        return causes.critical_path(self)

    @cached_property
    def released_by(self) -> Ints:
        """For each Wait the Signal that released it, otherwise -1."""
        return causes.released_by(self)

    @cached_property
    def _rank_number(self) -> Ints:
        return np.searchsorted(self.ranks, self.rank)

    @cached_property
    def _shares(self) -> GroupedOverlap:
        computes = self._by_rank(self.activity == Activity.COMPUTATION)
        communicates = self._by_rank(self.activity == Activity.COMMUNICATION)
        return overlap_by_group(computes, communicates, len(self.ranks))

    def _by_rank(self, chosen: NDArray[np.bool_]) -> GroupedIntervals:
        return GroupedIntervals(self._rank_number[chosen], self.start[chosen], self.end[chosen])

    def _has_below(self, inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which spans have one of these somewhere inside them."""
        found = np.zeros(self.num_spans, bool)
        above = np.flatnonzero(inside)
        while len(above):
            above = np.unique(self.parent[above])
            above = above[above >= 0]
            found[above] = True
        return found

    def _queue_numbers(self, queue: str) -> list[int]:
        return [
            number for number, name in enumerate(self.queues) if queue in (name, queue_kind(name))
        ]


def queue_order(name: str) -> tuple[int, list[str | int]]:
    """Return a sort key of queues: the host, then streams, copy engines, NICs.

    >>> sorted(["copy10", "stream0", "copy2", "host"], key=queue_order)
    ['host', 'stream0', 'copy2', 'copy10']
    """
    kinds = ("host", "stream", "copy", "nic")
    kind = queue_kind(name)
    first = kinds.index(kind) if kind in kinds else len(kinds)
    return first, [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)]


_META = 8
_ROWS = tuple(f.name for f in fields(Timeline))[_META:]


def _time_zero(columns: dict[str, Any]) -> float:
    held = (columns["kind"] == CommandKind.SUBMIT) & (columns["flag"] >= 0)
    if held.any():
        return float(columns["end"][held].max())
    return float(columns["start"].min()) if len(columns["start"]) else 0.0
