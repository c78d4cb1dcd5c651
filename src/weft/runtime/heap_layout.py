"""Offsets of a schedule's flags, doorbells, timestamps and buffers in a rank's region."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.errors import BoundsError, ScheduleError
from weft.runtime.block_allocator import PAGE, round_up
from weft.schedule import CommandKind, CommandTable

Ints = NDArray[np.int64]

CACHE_LINE = 64  # a flag or doorbell has its own: no false sharing
STAMP_BYTES = 16  # of a row: begin and end, nanoseconds
LOCATION_BYTES = 16  # of a buffer: its address in this execution and its size


@dataclass(frozen=True)
class HeapLayout:
    """Offsets from the start of a block, the same for every rank.

    A buffer takes the address space of its largest rank; memory is committed for each rank's own
    size. ``unbacked`` buffers have none: the caller's memory is bound to them in every execution.
    Executions rotate through ``num_buffers`` copies of the scratch.
    """

    table: CommandTable
    unbacked: frozenset[int] = frozenset()
    num_buffers: int = 1

    @cached_property
    def rank_of_row(self) -> NDArray[np.int32]:
        """The rank that executes each row."""
        return self.table.thread_rank[self.table.thread]

    def rows_of(self, rank: int) -> Ints:
        """Return the rows that a rank executes, in order."""
        return np.flatnonzero(self.rank_of_row == rank)

    @cached_property
    def sizes(self) -> Ints:
        """Bytes of each buffer on each rank."""
        flat = self.table.schedule
        sizes = [[b.size_on(rank) for rank in range(flat.num_ranks)] for b in flat.buffers]
        return np.asarray(sizes, np.int64).reshape(len(flat.buffers), flat.num_ranks)

    @property
    def doorbells(self) -> int:
        """Where the doorbells start, one per queue; flags precede them."""
        return self.table.schedule.num_flags * CACHE_LINE

    @cached_property
    def backed_bytes(self) -> Ints:
        """Bytes of heap memory behind each buffer on each rank."""
        backed_bytes: Ints = self.sizes.copy()
        backed_bytes[list(self.unbacked)] = 0
        return backed_bytes

    @cached_property
    def buffer_stride(self) -> Ints:
        """The distance to the next copy of a buffer; 0 unless it is scratch that rotates."""
        scratch = [buffer.role == "scratch" for buffer in self.table.schedule.buffers]
        largest = self.backed_bytes.max(axis=1, initial=0)
        rotates = np.asarray(scratch, bool) & (self.num_buffers > 1)
        return np.where(rotates, -(-largest // CACHE_LINE) * CACHE_LINE, 0).astype(np.int64)

    @cached_property
    def shared(self) -> NDArray[np.bool_]:
        """Whether other ranks access a buffer: by buffer and rank."""
        table = self.table
        row_of = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
        foreign = self.rank_of_row[row_of] != table.access_rank
        shared = np.zeros(self.sizes.shape, bool)
        shared[table.access_buffer[foreign], table.access_rank[foreign]] = True
        return shared

    @property
    def locations(self) -> int:
        """Where the locations start, one per buffer."""
        return self.doorbells + len(self.table.queues) * CACHE_LINE

    @property
    def stamps(self) -> int:
        """Where the timestamps start."""
        return self.locations + round_up(
            len(self.table.schedule.buffers) * LOCATION_BYTES, CACHE_LINE
        )

    @cached_property
    def _front(self) -> int:
        """Bytes of everything before the first buffer."""
        most = np.bincount(self.rank_of_row, minlength=1).max(initial=0)
        return self.stamps + int(most) * STAMP_BYTES

    @cached_property
    def buffers(self) -> Ints:
        """Where each buffer starts; large ones are page-aligned."""
        offsets, at = [], self._front
        sizes = (
            self.backed_bytes.max(axis=1, initial=0) + (self.num_buffers - 1) * self.buffer_stride
        )
        for size in sizes.tolist():
            at = round_up(at, PAGE if size >= PAGE else CACHE_LINE)
            offsets.append(at)
            at += size
        return np.asarray([*offsets, at], np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return int(self.buffers[-1])

    def ranges(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges that a rank needs memory for: offset and bytes."""
        yield 0, self._front
        sizes = (self.backed_bytes[:, rank] + (self.num_buffers - 1) * self.buffer_stride).tolist()
        yield from zip(self.buffers[:-1].tolist(), sizes, strict=True)


def require_rotation(layout: HeapLayout) -> None:
    """Raise if ranks that run ahead could overwrite what others still read.

    A rank may leave before the others if they access only its scratch, whose copies rotate, and
    if every flag is raised by one rank: in a sum of several, one rank could stand for another.
    """
    table = layout.table
    scratch = np.asarray([b.role == "scratch" for b in table.schedule.buffers], bool)
    signals = np.flatnonzero(table.kind == CommandKind.SIGNAL)
    raised = table.flag_rank[signals].astype(np.int64) * table.schedule.num_flags
    pairs = np.stack([raised + table.flag_index[signals], layout.rank_of_row[signals]], axis=1)
    pairs = np.unique(pairs, axis=0)
    several = len(table.queues) > 1 or len(pairs) != len(np.unique(pairs[:, 0]))
    if several or not scratch.any() or (layout.shared.any(axis=1) & ~scratch).any():
        raise ScheduleError(
            f"{table.schedule.name} cannot rotate its scratch: it has none, or ranks access other "
            "memory of each other, or several ranks raise one flag."
        )


def require_bounds(layout: HeapLayout) -> None:
    """Raise if a command accesses memory that the schedule does not declare."""
    table, num_ranks = layout.table, layout.table.schedule.num_ranks
    _require_ranks(table, "flag", table.flag_rank, table.flag_index, table.schedule.num_flags)
    _require_ranks(table, "queue", table.target_rank, table.target_queue, len(table.queues))
    row_of = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
    rank, offset, nbytes = table.access_rank, table.access_offset, table.access_nbytes
    inside = (rank >= 0) & (rank < num_ranks)
    room = layout.sizes[table.access_buffer, np.where(inside, rank, 0)]
    inside &= (offset >= 0) & (nbytes >= 0) & (offset <= room) & (nbytes <= room - offset)
    for access in np.flatnonzero(~inside)[:1]:
        raise BoundsError(
            f"{table.where(row_of[access])}: out of bounds (bytes {offset[access]} to "
            f"{offset[access] + nbytes[access]} of {table.buffers[table.access_buffer[access]]}"
            f"@{rank[access]}, which has {room[access]})."
        )


def _require_ranks(
    table: CommandTable, what: str, rank: NDArray[np.int32], index: NDArray[np.int32], number: int
) -> None:
    named = (rank != -1) | (index != -1)
    wrong = (rank < 0) | (rank >= table.schedule.num_ranks) | (index < 0) | (index >= number)
    for row in np.flatnonzero(named & wrong)[:1]:
        raise BoundsError(
            f"{table.where(row)}: no {what} {index[row]} on rank {rank[row]} (there are {number} "
            f"on each of {table.schedule.num_ranks} ranks)."
        )


_EQUAL = (CommandKind.COPY, CommandKind.BROADCAST, CommandKind.SWAP, CommandKind.REDUCE)


def require_equal_sizes(table: CommandTable) -> None:
    """Raise if the slices of a command differ in size but must be equal."""
    first = np.minimum(table.access_start[:-1], max(len(table.access_nbytes) - 1, 0))
    row_of = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
    wanted = table.access_nbytes[first[row_of]] if len(row_of) else table.access_nbytes
    wrong = np.isin(table.kind[row_of], _EQUAL) & (table.access_nbytes != wanted)
    for access in np.flatnonzero(wrong)[:1]:
        raise ScheduleError(
            f"{table.where(row_of[access])}: slices differ in size ({wanted[access]} and "
            f"{table.access_nbytes[access]} bytes)."
        )
