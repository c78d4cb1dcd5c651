"""A Schedule expanded to columns: one row per command, for some or all of its ranks.

Checks, simulator and runtime all read this table, so the meaning of a compact program is decided
here alone. A program is walked once, whatever the number of its ranks and iterations: each stored
command yields its rows, and each of its values yields one array.

Rows of a (rank, queue) are contiguous and in program order: a Launch, then its lanes one after
another. A command's ``id`` is its position in that order, so it is the same in every interpreter. A
*thread* is what runs in order: a queue, or one lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.errors import TooLargeError
from weft.schedule.accesses import accesses
from weft.schedule.inline import inline
from weft.schedule.ir import KIND_OF, Command, CommandKind, Flag, Queue, Signal, Submit, Wait
from weft.schedule.template import Emission, Numbering, Template, num_rows_of
from weft.schedule.values import value_at
from weft.units import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from weft.schedule.schedule import Schedule

    Ints = NDArray[np.int64]
    SeenBy = Callable[[Any, Any], Any]

MAX_ROWS = 30_000_000  # commands or slices; each takes some 300 bytes while it is priced


@dataclass(frozen=True, slots=True)
class CommandTable:
    """The commands of ``ranks`` as columns of rows, of accesses and of threads.

    ``flag_rank`` and ``flag_index`` are -1 if a command has no flag (for a Submit they are its
    hold). ``count`` is the threshold of a Wait or the number of commands of a Submit. ``fed`` is
    the number by which a Submit counts this command in its queue, -1 if none does (lanes, the forks
    and joins of calls). The accesses of row i are ``access_start[i]`` up to ``access_start[i +
    1]``: sources in order, then destinations.
    """

    __repr__ = brief

    schedule: Schedule  # without calls
    ranks: Ints
    queues: tuple[str, ...]  # names, by queue number
    buffers: tuple[str, ...]
    commands: tuple[Command, ...]  # the stored commands, indexed by `command`

    kind: NDArray[np.uint8]
    command: NDArray[np.int32]
    thread: NDArray[np.int32]
    id: NDArray[np.int32]
    parent: NDArray[np.int32]  # row of the enclosing Launch or Call, or -1
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
    thread_launch: NDArray[np.int32]  # the row that starts it, -1 for a queue
    thread_start: NDArray[np.int64]  # its first row and the row after its last
    thread_stop: NDArray[np.int64]
    thread_queue_of: tuple[Queue, ...] = field(repr=False)  # priority, units, host: indexed by
    thread_decl: NDArray[np.int32] = field(repr=False)  # ..this number

    @property
    def num_rows(self) -> int:
        """The number of commands."""
        return len(self.kind)

    def where(self, row: int) -> str:
        """Return the location of a command for error messages, such as ``stream0@3 #12 Wait``."""
        thread = self.thread[row]
        lane = self.thread_lane[thread]
        queue = self.queues[self.thread_queue[thread]]
        place = f"{queue}@{self.thread_rank[thread]}" + (f" lane {lane}" if lane >= 0 else "")
        return f"{place} #{self.id[row]} {CommandKind(self.kind[row]).name.capitalize()}"


def expand(
    schedule: Schedule,
    ranks: Sequence[int] | Ints | None = None,
    *,
    seen_by: SeenBy | None = None,
) -> CommandTable:
    """Expand the commands of ``ranks`` (None: all ranks) to a table.

    With ``seen_by(runner, owner)``, offsets and sizes of a slice are evaluated for the rank it
    returns instead of the runner: symmetry maps our access to another rank to that rank's access to
    us.
    """
    flat = inline(schedule)
    chosen = np.arange(flat.num_ranks) if ranks is None else np.asarray(ranks, np.int64)
    names, ordered = Numbering(flat), np.sort(chosen)
    found = [(program, _among(ordered, program.ranks)) for program in flat.programs]
    size = sum(len(here) * sum(map(_rows_of, program.queues)) for program, here in found)
    # Counted before anything is allocated: compact programs can expand to more than memory holds.
    _check_size(flat, size, "commands")
    parts = [
        _Part(names, here, Template(names, program), seen_by)
        for program, here in found
        if len(here) and program.queues
    ]
    _check_size(flat, sum(part.num_accesses for part in parts), "slices")
    return _assemble(flat, chosen, names, parts)


def _among(chosen: Ints, ranks: Sequence[int]) -> Ints:
    """Return those of ``ranks`` that are chosen, in order.

    Takes time in proportion to the shorter list, because each of thousands of programs may be for
    one rank.
    """
    mine = np.sort(np.asarray(ranks, np.int64))
    first, last = np.searchsorted(chosen, mine), np.searchsorted(chosen, mine, side="right")
    once = np.diff(mine, prepend=-1) > 0
    here: Ints = mine[once & (first < last)]
    return here


def _rows_of(queue: Queue) -> int:
    return num_rows_of(queue.commands)


def _check_size(flat: Schedule, size: int, what: str) -> None:
    if size > MAX_ROWS:
        raise TooLargeError(
            f"schedule {flat.name}: {flat.num_ranks:,} ranks expand to {size:,} {what}, expected "
            "at most "
            f"{MAX_ROWS:,}.",
            "Use fewer ranks or loop iterations. Ranks that behave the same are expanded once, so "
            "a collective whose size the ranks divide may fit.",
        )


class _Part(NamedTuple):
    """A template and the ranks it is instantiated for."""

    names: Numbering
    ranks: Ints
    template: Template
    seen_by: SeenBy | None

    @property
    def num_accesses(self) -> int:
        each = (
            len(emission.at.rows) * sum(1 for _ in accesses(emission.command))
            for emission in self.template.emissions
        )
        return len(self.ranks) * sum(each)


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


def _assemble(flat: Schedule, chosen: Ints, names: Numbering, parts: list[_Part]) -> CommandTable:
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
    return CommandTable(
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
    """Write the rows of one part, and return the columns of its accesses."""
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
    _fill_places(part, column, base, first_row)
    for emission in part.template.emissions:
        _fill_values(part, column, emission)
        if shape_of_accesses[1]:
            _fill_accesses(part, touched, emission, starts[emission.at.rows])
    column["id"][:] = _ids(part.template)
    return {name: array.reshape(-1) for name, array in touched.items()}


def _fill_places(part: _Part, column: dict[str, Any], base: Ints, first_row: int) -> None:
    """Write the columns that every row has, for all emissions at once; a step has thousands."""
    emissions = part.template.emissions
    if not emissions:
        return
    here, threads, parents, fed = (
        np.concatenate([getattr(each.at, name) for each in emissions])
        for name in ("rows", "threads", "parents", "fed")
    )
    size = [len(each.at.rows) for each in emissions]
    parent = parents + base * part.template.num_rows + first_row
    column["kind"][:, here] = np.repeat([KIND_OF[type(e.command)] for e in emissions], size)
    column["command"][:, here] = np.repeat([each.number for each in emissions], size)
    column["thread"][:, here] = threads + base * part.template.num_threads
    column["fed"][:, here] = fed
    column["parent"][:, here] = np.where(parents < 0, -1, parent)


def _ids(template: Template) -> Ints:
    ids = np.arange(template.num_rows)
    for piece in template.threads:
        if (piece["lane"] == -1).any():  # a queue is always alone in its piece
            ids[piece["start"][0] : piece["stop"][0]] -= piece["start"][0]
    return ids


def _fill_values(part: _Part, column: dict[str, Any], emission: Emission) -> None:
    command, at = emission.command, emission.at
    ranks, here = part.ranks[:, None], at.rows
    flag: Flag | None = None
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


def _fill_accesses(part: _Part, touched: dict[str, Any], emission: Emission, first: Ints) -> None:
    ranks, counters = part.ranks[:, None], emission.at.counters
    for number, (mode, where) in enumerate(accesses(emission.command)):
        here = first + number
        touched["access_mode"][:, here] = mode
        touched["access_buffer"][:, here] = part.names.buffer(where.buffer)
        owner = value_at(where.rank, ranks, counters)
        # Offsets are those of the access that the owner's representative sees, so that conflicts
        # on it can be found without expanding all ranks.
        seer = ranks if part.seen_by is None else part.seen_by(ranks, owner)
        touched["access_rank"][:, here] = owner
        touched["access_offset"][:, here] = value_at(where.offset, seer, counters)
        touched["access_nbytes"][:, here] = value_at(where.nbytes, seer, counters)


def _fill_threads(part: _Part, first_row: int) -> dict[str, Any]:
    template, num = part.template, len(part.ranks)
    pieces = (
        {
            name: np.concatenate([piece[name] for piece in template.threads])
            for name in template.threads[0]
        }
        if template.threads
        else {}
    )
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
