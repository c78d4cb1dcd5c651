"""A Schedule written out as columns: one row a command, for some or all of its ranks.

Checks, simulator and runtime all read this table, so what a compact program means is
decided here alone. A program is walked once whatever the number of its ranks and
iterations: each stored command yields its rows, and each of its values one array.

Rows of a (rank, queue) are contiguous and in the order of the text: a Launch, then its
lanes one after another. A command's ``id`` is its place in that order, which makes it the
same in every interpreter. A *thread* is what runs in order: a queue, or one lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.errors import ScheduleError
from weft.schedule.inline import inline
from weft.schedule.ir import (
    KIND_OF,
    Broadcast,
    Call,
    Command,
    Copy,
    Decode,
    Encode,
    Kernel,
    Kind,
    Launch,
    Program,
    Queue,
    Reduce,
    Repeat,
    Scope,
    Signal,
    Slice,
    Submit,
    Swap,
    Wait,
)
from weft.schedule.values import value_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from weft.schedule.schedule import Schedule

    Ints = NDArray[np.int64]
    SeenBy = Callable[[Any, Any], Any]

READ, WRITE = 1, 2


@dataclass(frozen=True, slots=True)
class Table:
    """The commands of ``ranks``, written out. Columns of rows, of accesses, of threads.

    ``flag_rank`` and ``flag_index`` are -1 where a command has no flag (for a Submit they
    are its hold). ``count`` is a Wait's threshold or a Submit's commands. ``fed`` is the
    number by which a Submit counts this command in its queue, -1 where none does (lanes,
    the forks and joins of calls). Accesses of row i are ``access_start[i]`` up to
    ``access_start[i + 1]``: sources in order, then destinations.
    """

    schedule: Schedule  # without calls
    ranks: Ints
    queues: tuple[str, ...]  # names, by queue number
    buffers: tuple[str, ...]
    commands: tuple[Command, ...]  # what stands in the compact form, by `command`

    kind: NDArray[np.uint8]
    command: NDArray[np.int32]
    thread: NDArray[np.int32]
    id: NDArray[np.int32]
    parent: NDArray[np.int32]  # row of the Launch or Call around it, or -1
    fed: NDArray[np.int32]
    flag_rank: NDArray[np.int32]
    flag_index: NDArray[np.int32]
    count: NDArray[np.int64]
    target_rank: NDArray[np.int32]  # of a Submit
    target_queue: NDArray[np.int32]

    access_start: NDArray[np.int64]
    access_mode: NDArray[np.uint8]
    access_rank: NDArray[np.int32]
    access_buffer: NDArray[np.int32]
    access_offset: NDArray[np.int64]
    access_nbytes: NDArray[np.int64]

    thread_rank: NDArray[np.int32]
    thread_queue: NDArray[np.int32]
    thread_lane: NDArray[np.int32]  # -1: the queue itself
    thread_launch: NDArray[np.int32]  # the row that starts it, -1: a queue
    thread_start: NDArray[np.int64]  # its first row and the row after its last
    thread_stop: NDArray[np.int64]
    thread_queue_of: tuple[Queue, ...] = field(repr=False)  # priority, units, host: by
    thread_decl: NDArray[np.int32] = field(repr=False)  # ..this number

    @property
    def num_rows(self) -> int:
        return len(self.kind)

    def where(self, row: int) -> str:
        """How a user finds a command: ``stream0@3 #12 Wait``, with its lane."""
        thread = self.thread[row]
        lane = self.thread_lane[thread]
        queue = self.queues[self.thread_queue[thread]]
        place = f"{queue}@{self.thread_rank[thread]}" + (f" lane {lane}" if lane >= 0 else "")
        return f"{place} #{self.id[row]} {Kind(self.kind[row]).name.capitalize()}"


def write_out(
    schedule: Schedule,
    ranks: Sequence[int] | Ints | None = None,
    *,
    seen_by: SeenBy | None = None,
) -> Table:
    """The commands of ``ranks`` (all of them when None) as a Table.

    With ``seen_by(runner, owner)`` offsets and sizes of a slice are those of the rank it
    returns instead of the runner's: what symmetry turns an access of ours to another into is
    an access of another to us.
    """
    flat = inline(schedule)
    chosen = np.arange(flat.num_ranks) if ranks is None else np.asarray(ranks, np.int64)
    names = _Names(flat)
    parts = []
    for program in flat.programs:
        here = np.intersect1d(np.asarray(program.ranks, np.int64), chosen)
        if len(here) and program.queues:
            parts.append(_Part(names, here, _Template(names, program), seen_by))
    return _assemble(flat, chosen, names, parts)


def count_rows(schedule: Schedule, ranks: Ints) -> int:
    """How many rows ``write_out`` would make for these ranks."""
    return sum(
        len(np.intersect1d(np.asarray(program.ranks, np.int64), ranks))
        * sum(_num_rows(queue.commands) for queue in program.queues)
        for program in inline(schedule).programs
    )


class _Names:
    """Numbers for queues, buffers and stored commands of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        queues = {q.name for p in schedule.programs for q in p.queues}
        self.queues = {name: number for number, name in enumerate(sorted(queues))}
        self.buffers = {b.name: number for number, b in enumerate(schedule.buffers)}
        self.commands: list[Command] = []
        self.declarations: list[Queue] = []

    def buffer(self, name: str) -> int:
        if name not in self.buffers:
            raise ScheduleError(
                f"a command names buffer {name!r}, which the schedule does not declare.",
                f"Declared buffers: {', '.join(self.buffers) or 'none'}.",
            )
        return self.buffers[name]

    def queue(self, name: str) -> int:
        return self.queues.setdefault(name, len(self.queues))


class _At(NamedTuple):
    """Where one stored command lands: one entry an iteration in every array."""

    rows: Ints
    threads: Ints
    parents: Ints
    fed: Ints
    counters: tuple[Ints, ...]


class _Emission(NamedTuple):
    command: Command
    number: int
    at: _At


class _Template:
    """The rows of one program, for a rank not yet said."""

    def __init__(self, names: _Names, program: Program) -> None:
        self.names = names
        self.emissions: list[_Emission] = []
        self.num_rows = 0
        self.num_threads = 0
        self.threads: list[dict[str, Ints]] = []  # columns, in pieces
        for queue in program.queues:
            self._queue(queue)

    def _queue(self, queue: Queue) -> None:
        size = _num_rows(queue.commands)
        start = np.array([self.num_rows], np.int64)
        self.first_id = self.num_rows
        self.declaration = len(self.names.declarations)
        self.names.declarations.append(queue)
        self.queue_number = self.names.queue(queue.name)
        thread = self._new_threads(start, start + size, np.array([-1]), np.array([-1]))
        none = np.array([-1], np.int64)
        self._place(queue.commands, _At(start, thread, none, np.array([0], np.int64), ()))
        self.num_rows += size

    def _new_threads(self, start: Ints, stop: Ints, lane: Ints, launch: Ints) -> Ints:
        numbers = np.arange(self.num_threads, self.num_threads + len(start))
        self.num_threads += len(start)
        queue = np.full(len(start), self.queue_number)
        declared = np.full(len(start), self.declaration)
        self.threads.append(
            {
                "start": start,
                "stop": stop,
                "lane": lane,
                "launch": launch,
                "queue": queue,
                "decl": declared,
            }
        )
        return numbers

    def _place(self, items: Sequence[Command | Repeat], at: _At) -> _At:
        """Give ``items`` their rows, one after another; returns where the next would stand."""
        for item in items:
            match item:
                case Repeat():
                    inner = _iterations(at, item, _num_rows(item.body), _num_fed(item.body))
                    self._place(item.body, inner)
                case Scope():
                    self._scope(item, at)
                case Launch():
                    self._emit(item, at)
                    self._lanes(item, at)
                case _:
                    self._emit(item, at)
            fed = np.where(at.fed >= 0, at.fed + _num_fed((item,)), -1)
            at = at._replace(rows=at.rows + _num_rows((item,)), fed=fed)
        return at

    def _scope(self, scope: Scope, at: _At) -> None:
        unfed = np.full(len(at.fed), -1)
        self._emit(scope, at._replace(fed=unfed))
        inside = at._replace(rows=at.rows + 1, parents=at.rows, fed=unfed)
        inside = self._place(scope.enter, inside)
        inside = self._place(scope.body, inside._replace(fed=at.fed))
        self._place(scope.leave, inside._replace(fed=unfed))

    def _lanes(self, launch: Launch, at: _At) -> None:
        rows = at.rows + 1
        number = np.zeros(len(rows), np.int64)
        unfed = np.full(len(rows), -1)
        for lane in launch.lanes:
            body = lane.body if isinstance(lane, Repeat) else lane
            count = lane.count if isinstance(lane, Repeat) else 1
            size = _num_rows(body)
            each = at._replace(rows=rows, parents=at.rows, fed=unfed)
            if isinstance(lane, Repeat):
                each = _iterations(each, lane, size, 0)
            lane_number = (number[:, None] + np.arange(count)).ravel()
            threads = self._new_threads(each.rows, each.rows + size, lane_number, each.parents)
            self._place(body, each._replace(threads=threads))
            rows = rows + count * size
            number = number + count

    def _emit(self, command: Command, at: _At) -> None:
        self.emissions.append(_Emission(command, len(self.names.commands), at))
        self.names.commands.append(command)


def _iterations(at: _At, loop: Repeat, rows_each: int, fed_each: int) -> _At:
    """Each place of ``at``, ``loop.count`` times over, with one more counter."""
    k = np.arange(loop.count)
    fed = np.where(at.fed[:, None] >= 0, at.fed[:, None] + fed_each * k, -1)
    counters = tuple(np.repeat(c, loop.count) for c in at.counters)
    return _At(
        (at.rows[:, None] + rows_each * k).ravel(),
        np.repeat(at.threads, loop.count),
        np.repeat(at.parents, loop.count),
        fed.ravel(),
        (*counters, np.tile(k, len(at.rows))),
    )


def _num_rows(items: Sequence[Command | Repeat]) -> int:
    total = 0
    for item in items:
        match item:
            case Repeat():
                total += item.count * _num_rows(item.body)
            case Scope():
                total += 1 + len(item.enter) + _num_rows(item.body) + len(item.leave)
            case Launch():
                total += 1
                for lane in item.lanes:
                    total += _num_rows((lane,) if isinstance(lane, Repeat) else lane)
            case _:
                total += 1
    return total


def _num_fed(items: Sequence[Command | Repeat]) -> int:
    """How many of these a Submit counts."""
    total = 0
    for item in items:
        match item:
            case Repeat():
                total += item.count * _num_fed(item.body)
            case Scope():
                total += _num_fed(item.body)
            case _:
                total += 1
    return total


class Access(NamedTuple):
    """One slice of a command and what happens to it."""

    mode: int
    slice: Slice


def accesses(command: Command) -> Iterator[Access]:  # noqa: C901 - one case a command
    """The slices a command touches: sources in order, then destinations."""
    match command:
        case Copy(src, dst) | Encode(src, dst) | Decode(src, dst):
            yield Access(READ, src)
            yield Access(WRITE, dst)
        case Broadcast(src, dsts):
            yield Access(READ, src)
            for dst in dsts:
                yield Access(WRITE, dst)
        case Swap(a, b):
            yield Access(READ | WRITE, a)
            yield Access(READ | WRITE, b)
        case Reduce(srcs, dst):
            for src in srcs:
                yield Access(READ, src)
            yield Access(WRITE, dst)
        case Kernel():
            for src in command.reads:
                yield Access(READ, src)
            for dst in command.writes:
                yield Access(WRITE, dst)
        case Launch() | Signal() | Wait() | Submit() | Call() | Scope():
            return


class _Part(NamedTuple):
    """A template and the ranks it is filled in for."""

    names: _Names
    ranks: Ints
    template: _Template
    seen_by: SeenBy | None


_ROW_COLUMNS: dict[str, Any] = {
    "kind": np.uint8,
    "command": np.int32,
    "thread": np.int32,
    "id": np.int32,
    "parent": np.int32,
    "fed": np.int32,
    "flag_rank": np.int32,
    "flag_index": np.int32,
    "count": np.int64,
    "target_rank": np.int32,
    "target_queue": np.int32,
}
_ACCESS_COLUMNS: dict[str, Any] = {
    "access_mode": np.uint8,
    "access_rank": np.int32,
    "access_buffer": np.int32,
    "access_offset": np.int64,
    "access_nbytes": np.int64,
}


def _assemble(flat: Schedule, chosen: Ints, names: _Names, parts: list[_Part]) -> Table:
    num_rows = sum(p.template.num_rows * len(p.ranks) for p in parts)
    rows = {name: np.empty(num_rows, dtype) for name, dtype in _ROW_COLUMNS.items()}
    for name in ("flag_rank", "flag_index", "target_rank", "target_queue"):
        rows[name].fill(-1)
    rows["count"].fill(0)
    counts = np.zeros(num_rows, np.int32)
    filled, threads = [], []
    first_row = first_thread = 0
    for part in parts:
        size = part.template.num_rows * len(part.ranks)
        view = {name: column[first_row : first_row + size] for name, column in rows.items()}
        filled.append(_fill(part, view, counts[first_row : first_row + size], first_row))
        view["thread"] += first_thread
        threads.append(_fill_threads(part, first_row))
        first_row += size
        first_thread += part.template.num_threads * len(part.ranks)
    access_start = np.zeros(num_rows + 1, np.int64)
    np.cumsum(counts, out=access_start[1:])
    return Table(
        schedule=flat,
        ranks=chosen,
        queues=tuple(sorted(names.queues, key=names.queues.__getitem__)),
        buffers=tuple(names.buffers),
        commands=tuple(names.commands),
        access_start=access_start,
        thread_queue_of=tuple(names.declarations),
        **rows,
        **_joined(filled, _ACCESS_COLUMNS),
        **_joined(threads, _THREAD_COLUMNS),
    )


_THREAD_COLUMNS: dict[str, Any] = {
    "thread_rank": np.int32,
    "thread_queue": np.int32,
    "thread_lane": np.int32,
    "thread_launch": np.int32,
    "thread_start": np.int64,
    "thread_stop": np.int64,
    "thread_decl": np.int32,
}


def _joined(pieces: list[dict[str, Any]], columns: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.concatenate([piece[name] for piece in pieces] or [np.empty(0, dtype)])
        for name, dtype in columns.items()
    }


def _fill(
    part: _Part, view: dict[str, Any], counts: NDArray[np.int32], first_row: int
) -> dict[str, Any]:
    """Write the rows of one part; returns the columns of its accesses."""
    shape = (len(part.ranks), part.template.num_rows)
    column = {name: array.reshape(shape) for name, array in view.items()}
    base = np.arange(shape[0], dtype=np.int64)[:, None]
    starts = np.zeros(shape[1] + 1, np.int64)
    for emission in part.template.emissions:
        starts[emission.at.rows + 1] = sum(1 for _ in accesses(emission.command))
    counts.reshape(shape)[:] = starts[1:]
    np.cumsum(starts, out=starts)
    shape_of_accesses = (shape[0], int(starts[-1]))
    touched = {name: np.empty(shape_of_accesses, dtype) for name, dtype in _ACCESS_COLUMNS.items()}
    for emission in part.template.emissions:
        at, here = emission.at, emission.at.rows
        column["kind"][:, here] = KIND_OF[type(emission.command)]
        column["command"][:, here] = emission.number
        column["thread"][:, here] = at.threads + base * part.template.num_threads
        column["fed"][:, here] = at.fed
        parent = at.parents + base * shape[1] + first_row
        column["parent"][:, here] = np.where(at.parents < 0, -1, parent)
        _fill_values(part, column, emission)
        _fill_accesses(part, touched, emission, starts[here])
    column["id"][:] = _ids(part.template)
    return {name: array.reshape(-1) for name, array in touched.items()}


def _ids(template: _Template) -> Ints:
    ids = np.arange(template.num_rows)
    for piece in template.threads:
        if (piece["lane"] == -1).any():  # a queue, always alone in its piece
            ids[piece["start"][0] : piece["stop"][0]] -= piece["start"][0]
    return ids


def _fill_values(part: _Part, column: dict[str, Any], emission: _Emission) -> None:
    command, at = emission.command, emission.at
    ranks, here = part.ranks[:, None], at.rows
    flag = None
    match command:
        case Signal(flag):
            pass
        case Wait(flag, count):
            column["count"][:, here] = value_at(count, ranks, at.counters)
        case Submit(rank, queue, count, flag):
            column["count"][:, here] = value_at(count, ranks, at.counters)
            column["target_rank"][:, here] = value_at(rank, ranks, at.counters)
            column["target_queue"][:, here] = part.names.queue(queue)
        case _:
            pass
    if flag is not None:
        column["flag_rank"][:, here] = value_at(flag.rank, ranks, at.counters)
        column["flag_index"][:, here] = value_at(flag.index, ranks, at.counters)


def _fill_accesses(
    part: _Part, touched: dict[str, Any], emission: _Emission, first: Ints
) -> None:
    ranks, counters = part.ranks[:, None], emission.at.counters
    for number, (mode, where) in enumerate(accesses(emission.command)):
        here = first + number
        touched["access_mode"][:, here] = mode
        touched["access_buffer"][:, here] = part.names.buffer(where.buffer)
        owner = value_at(where.rank, ranks, counters)
        seer = ranks if part.seen_by is None else part.seen_by(ranks, owner)
        touched["access_rank"][:, here] = owner
        touched["access_offset"][:, here] = value_at(where.offset, seer, counters)
        touched["access_nbytes"][:, here] = value_at(where.nbytes, seer, counters)


def _fill_threads(part: _Part, first_row: int) -> dict[str, Any]:
    template, num = part.template, len(part.ranks)
    pieces = {
        name: np.concatenate([piece[name] for piece in template.threads])
        for name in template.threads[0]
    } if template.threads else {}
    row_base = first_row + np.arange(num, dtype=np.int64)[:, None] * template.num_rows

    def over_ranks(values: Ints) -> Ints:
        return np.broadcast_to(values, (num, template.num_threads)).reshape(-1)

    launch = np.where(pieces["launch"] < 0, -1, pieces["launch"] + row_base)
    columns = {
        "thread_rank": over_ranks(part.ranks[:, None]),
        "thread_queue": over_ranks(pieces["queue"]),
        "thread_lane": over_ranks(pieces["lane"]),
        "thread_launch": launch.reshape(-1),
        "thread_start": (pieces["start"] + row_base).reshape(-1),
        "thread_stop": (pieces["stop"] + row_base).reshape(-1),
        "thread_decl": over_ranks(pieces["decl"]),
    }
    return {name: array.astype(_THREAD_COLUMNS[name]) for name, array in columns.items()}
