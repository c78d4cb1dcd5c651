"""The rows of one rank as columns of the native core: offsets, thresholds, instruction streams."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft._core import Member, Program, reduction_item_bytes
from weft.errors import RunError, ScheduleError
from weft.runtime.heap_layout import CACHE_LINE, LOCATION_BYTES, HeapLayout
from weft.runtime.row_codecs import coders_of, slot_copies
from weft.schedule import CommandKind, CommandTable, Kernel, Reduce, queue_kind

Ints = NDArray[np.int64]

CALLED = ("stream", "host")  # queues that the calling thread executes
# Queues with an engine thread each; on one machine a nic is another copy engine.
ENGINES = ("copy", "nic")


@dataclass(frozen=True, slots=True)
class PlacedLayout:
    """A layout at an address of the heap: ``region(rank)`` plus ``block``."""

    layout: HeapLayout
    region: Callable[[int], int]
    block: int

    def start(self, rank: Any) -> Any:
        """Return where the block of a rank starts, or of each of an array of ranks."""
        first, step = self.region(0), self.region(1) - self.region(0)
        return first + rank * step + self.block


def build_program(
    member: Member,
    placed: PlacedLayout,
    rank: int,
    engine_numbers: Mapping[str, int],
    *,
    elastic: bool = False,
    direct: CommandTable | None = None,
) -> Program:
    """Build the native program of ``rank``; if elastic, slices are as long as the bound memory.

    ``direct`` has the offsets of slices of a stage in the data that it stands for.
    """
    table = placed.layout.table
    rows = placed.layout.rows_of(rank)
    named, reduction = _reductions(table, rows)
    coders, coder = coders_of(table, rows)
    gate, hold = _gates(placed, rank, rows)
    access_start, accesses = _accesses(placed.layout, rows, direct or table)
    streams = _instruction_streams(table, rank, rows, engine_numbers)
    try:
        return Program(
            member,
            kind=_kinds(table, rows),
            access_start=access_start,
            accesses=accesses,
            gate=gate,
            hold=hold,
            wait=_waits(placed, rows, streams),
            raised=_raises(placed, rows),
            reduction=reduction,
            reductions=named,
            coder=coder,
            coders=coders,
            slot=slot_copies(table, rows),
            streams=streams,
            locations=_locations(placed),
            own=_own(placed, rank, stage_of=-1 if direct is None else 0),
            elastic=elastic,
            num_buffers=placed.layout.num_buffers,
            stamps=placed.start(rank) + placed.layout.stamps,
        )
    except ValueError as error:
        raise ScheduleError(
            f"{table.schedule.name} cannot be run on rank {rank}: {error}."
        ) from error


def engine_queues(table: CommandTable) -> tuple[str, ...]:
    """Return the queues that need an engine, on any rank."""
    for name in table.queues:
        if queue_kind(name) not in CALLED + ENGINES:
            raise ScheduleError(
                f"{table.schedule.name}: unknown queue {name!r}.",
                "Use stream0, copy0, nic0 (or a higher number) or host.",
            )
    return tuple(name for name in table.queues if queue_kind(name) in ENGINES)


def _kinds(table: CommandTable, rows: Ints) -> Ints:
    """Return the kinds; external kernels become Call rows, which do nothing here."""
    external = [isinstance(c, Kernel) and c.external for c in table.commands]
    marked = np.asarray(external, bool)[table.command[rows]]
    return np.where(marked, CommandKind.CALL, table.kind[rows]).astype(np.int64)


def _accesses(layout: HeapLayout, rows: Ints, direct: CommandTable) -> tuple[Ints, Ints]:
    """Return where the slices of each row start, and the slices.

    A slice is rank, buffer, offset, bytes, the distance to the same slice of the next buffer, and
    the offset of a slice of a stage in its data.
    """
    table = layout.table
    counts = table.access_start[rows + 1] - table.access_start[rows]
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    inner = np.arange(start[-1]) - np.repeat(start[:-1], counts)
    mine = np.repeat(table.access_start[rows], counts) + inner
    columns = (table.access_rank, table.access_buffer, table.access_offset, table.access_nbytes)
    values = [column[mine].astype(np.int64) for column in columns]
    values += [layout.buffer_stride[table.access_buffer[mine]]]
    return start, np.stack([*values, direct.access_offset[mine].astype(np.int64)], axis=1)


def _locations(placed: PlacedLayout) -> Ints:
    """Return the offset of the word that holds a buffer's location: by rank and buffer."""
    flat = placed.layout.table.schedule
    first = placed.start(np.arange(flat.num_ranks, dtype=np.int64)) + placed.layout.locations
    locations: Ints = first[:, None] + np.arange(len(flat.buffers), dtype=np.int64) * LOCATION_BYTES
    return locations


def _own(placed: PlacedLayout, rank: int, stage_of: int) -> Ints:
    """Return for each buffer: backing offset and bytes, size, shared, read, written, stage of."""
    layout = placed.layout
    roles = [buffer.role for buffer in layout.table.schedule.buffers]
    columns = (
        placed.start(rank) + layout.buffers[:-1],
        layout.backed_bytes[:, rank],
        layout.sizes[:, rank],
        layout.shared[:, rank],
        np.asarray([role in ("in", "inout") for role in roles], bool),
        np.asarray([role in ("out", "inout") for role in roles], bool),
        np.asarray([stage_of if role == "scratch" else -1 for role in roles], np.int64),
    )
    return np.stack([column.astype(np.int64) for column in columns], axis=1)


def _flag_words(placed: PlacedLayout, rows: Ints) -> Ints:
    table = placed.layout.table
    # A cache line for each flag: with several in a line, a rank that polls one would lose the line
    # whenever another is raised (false sharing).
    where: Ints = placed.start(table.flag_rank[rows].astype(np.int64))
    return where + table.flag_index[rows].astype(np.int64) * CACHE_LINE


def _doorbells(placed: PlacedLayout, rank: Any, queue: Any) -> Any:
    return placed.start(rank) + placed.layout.doorbells + queue * CACHE_LINE


def _no_conditions(rows: Ints) -> Ints:
    return np.tile(np.array([-1, 0, 0], np.int64), (len(rows), 1))


def _signals(table: CommandTable) -> Ints:
    """Count the signals of each flag in one execution: by flag rank and index."""
    num_flags = max(table.schedule.num_flags, 1)
    signals = table.kind == CommandKind.SIGNAL
    flags = table.flag_rank[signals].astype(np.int64) * num_flags + table.flag_index[signals]
    size = table.schedule.num_ranks * num_flags
    return np.bincount(flags, minlength=size).reshape(-1, num_flags)


def _waits(placed: PlacedLayout, rows: Ints, streams: Ints) -> Ints:
    """Return the condition of each wait.

    Where scratch buffers rotate, the last waits of a rank protect a buffer that is not reused
    before ``num_buffers`` executions: they wait for an execution so much earlier.
    """
    table, result = placed.layout.table, _no_conditions(rows)
    here = table.kind[rows] == CommandKind.WAIT
    waits = rows[here]
    # Flags are never reset, which would need a barrier: each execution raises a flag by as many
    # steps, and the threshold of a wait rises by them too.
    steps = _signals(table)[table.flag_rank[waits], table.flag_index[waits]]
    result[here] = np.stack([_flag_words(placed, waits), table.count[waits], steps], axis=1)
    if placed.layout.num_buffers > 1:
        last = _last_waits(here, streams)
        result[last, 1] -= (placed.layout.num_buffers - 1) * result[last, 2]
    return result


def _last_waits(waits: NDArray[np.bool_], streams: Ints) -> Ints:
    """Return the waits at the end of each instruction stream."""
    found: list[int] = []
    for begin, end, launch, _ in streams.tolist():
        at = end
        while at > begin and waits[at - 1]:
            at -= 1
        found += range(at, end) if launch >= 0 else ()
    return np.asarray(found, np.int64)


def _raises(placed: PlacedLayout, rows: Ints) -> Ints:
    table = placed.layout.table
    result = np.tile(np.array([-1, 0], np.int64), (len(rows), 1))
    signals = table.kind[rows] == CommandKind.SIGNAL
    result[signals, 0], result[signals, 1] = _flag_words(placed, rows[signals]), 1
    submits = table.kind[rows] == CommandKind.SUBMIT
    handed = rows[submits]
    target = table.target_rank[handed].astype(np.int64)
    queue = table.target_queue[handed].astype(np.int64)
    result[submits, 0] = _doorbells(placed, target, queue)
    result[submits, 1] = table.count[handed]
    return result


def _gates(placed: PlacedLayout, rank: int, rows: Ints) -> tuple[Ints, Ints]:
    """Return for each row the doorbell that submits it and the flag that releases it."""
    table, gate, hold = placed.layout.table, _no_conditions(rows), _no_conditions(rows)
    submits = np.flatnonzero((table.kind == CommandKind.SUBMIT) & (table.target_rank == rank))
    queue_of_row = table.thread_queue[table.thread[rows]]
    signals = _signals(table)
    for queue in np.unique(table.target_queue[submits]).tolist():
        feeding = submits[table.target_queue[submits] == queue]
        handed = np.cumsum(table.count[feeding])
        here = np.flatnonzero((queue_of_row == queue) & (table.fed[rows] >= 0))
        number = table.fed[rows[here]].astype(np.int64)
        gate[here, 0] = _doorbells(placed, rank, queue)
        gate[here, 1], gate[here, 2] = number + 1, handed[-1]
        _require_one_host(table, feeding)
        by = feeding[np.minimum(np.searchsorted(handed, number, "right"), len(feeding) - 1)]
        held = table.flag_rank[by] >= 0
        by, here = by[held], here[held]
        hold[here, 0], hold[here, 1] = _flag_words(placed, by), 1
        hold[here, 2] = signals[table.flag_rank[by], table.flag_index[by]]
    return gate, hold


def _require_one_host(table: CommandTable, feeding: Ints) -> None:
    """Raise if several host queues submit held commands to one queue: the order is undefined."""
    if (table.flag_rank[feeding] >= 0).any() and len(np.unique(table.thread[feeding])) > 1:
        first, last = table.where(feeding[0]), table.where(feeding[-1])
        raise ScheduleError(
            f"{first} and {last} submit held commands to one queue: their order is undefined.",
            "Submit held commands of a queue from one host queue.",
        )


def _reductions(table: CommandTable, rows: Ints) -> tuple[list[tuple[str, str]], Ints]:
    """Return the distinct reductions, and the index of the one that each row uses."""
    named: dict[tuple[str, str], int] = {}
    numbers = np.full(len(table.commands), -1, np.int64)
    for number in np.unique(table.command[rows]).tolist():
        command = table.commands[number]
        if isinstance(command, Reduce):
            key = (command.dtype, command.op)
            _require_reduction(table, *key)
            numbers[number] = named.setdefault(key, len(named))
    return list(named), numbers[table.command[rows]]


def _require_reduction(table: CommandTable, dtype: str, op: str) -> None:
    try:
        reduction_item_bytes(dtype, op)
    except ValueError as error:
        raise RunError(f"{table.schedule.name} cannot be run: {error}.") from error


def _instruction_streams(
    table: CommandTable, rank: int, rows: Ints, engine_numbers: Mapping[str, int]
) -> Ints:
    """Return begin, end, launching row and runner of each thread; rows count from 0 here."""
    mine = np.flatnonzero(table.thread_rank == rank)
    launch = table.thread_launch[mine]
    runners = np.asarray([engine_numbers.get(name, 0) for name in table.queues], np.int64)
    return np.stack(
        [
            np.searchsorted(rows, table.thread_start[mine]),
            np.searchsorted(rows, table.thread_stop[mine]),
            np.where(launch < 0, -1, np.searchsorted(rows, launch)),
            runners[table.thread_queue[mine]] if len(mine) else mine,
        ],
        axis=1,
    ).astype(np.int64)
