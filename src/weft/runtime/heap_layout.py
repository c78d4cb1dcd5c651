"""Where a schedule's flags, doorbells, places, stamps and buffers lie in a rank's region."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.errors import BoundsError, ScheduleError
from weft.runtime.block_allocator import PAGE, round_up
from weft.schedule import Kind, Table

Ints = NDArray[np.int64]

CACHE_LINE = 64  # a flag or doorbell has a cache line of its own
STAMP_BYTES = 16  # bytes a row: begin and end, nanoseconds
LOCATION_BYTES = 16  # bytes a buffer: where it lies in this execution, and how much there is of it


@dataclass(frozen=True)
class HeapLayout:
    """Offsets from the start of a block, the same for every rank.

    A buffer takes the room of its largest rank; memory is reserved for each rank's own size.
    ``unbacked`` buffers have none: the caller's memory is bound to them in every execution.
    Of scratch there are ``num_buffers`` copies, used by one execution after another.
    """

    table: Table
    unbacked: frozenset[int] = frozenset()
    num_buffers: int = 1

    @cached_property
    def rank_of_row(self) -> NDArray[np.int32]:
        """The rank that executes each row."""
        return self.table.thread_rank[self.table.thread]

    def rows_of(self, rank: int) -> Ints:
        """Give the rows that a rank executes, in order."""
        return np.flatnonzero(self.rank_of_row == rank)

    @cached_property
    def sizes(self) -> Ints:
        """Bytes of each buffer on each rank."""
        flat = self.table.schedule
        sizes = [[b.size_on(rank) for rank in range(flat.num_ranks)] for b in flat.buffers]
        return np.asarray(sizes, np.int64).reshape(len(flat.buffers), flat.num_ranks)

    @property
    def doorbells(self) -> int:
        """Where the doorbells start, one a queue; flags stand before them."""
        return self.table.schedule.num_flags * CACHE_LINE

    @cached_property
    def backed_bytes(self) -> Ints:
        """Bytes of memory that each buffer has of its own on each rank."""
        backed_bytes: Ints = self.sizes.copy()
        backed_bytes[list(self.unbacked)] = 0
        return backed_bytes

    @cached_property
    def buffer_stride(self) -> Ints:
        """How far the next copy of a buffer lies: nowhere, unless it is scratch that rotates."""
        scratch = [buffer.role == "scratch" for buffer in self.table.schedule.buffers]
        largest = self.backed_bytes.max(axis=1, initial=0)
        rotates = np.asarray(scratch, bool) & (self.num_buffers > 1)
        return np.where(rotates, -(-largest // CACHE_LINE) * CACHE_LINE, 0).astype(np.int64)

    @cached_property
    def shared(self) -> NDArray[np.bool_]:
        """Whether other ranks touch a buffer: by buffer and rank."""
        table = self.table
        row_of = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
        foreign = self.rank_of_row[row_of] != table.access_rank
        shared = np.zeros(self.sizes.shape, bool)
        shared[table.access_buffer[foreign], table.access_rank[foreign]] = True
        return shared

    @property
    def locations(self) -> int:
        """Where the places start, one a buffer."""
        return self.doorbells + len(self.table.queues) * CACHE_LINE

    @property
    def stamps(self) -> int:
        """Where the stamps start."""
        return self.locations + round_up(
            len(self.table.schedule.buffers) * LOCATION_BYTES, CACHE_LINE
        )

    @cached_property
    def _front(self) -> int:
        """Bytes of all that is no buffer."""
        most = np.bincount(self.rank_of_row, minlength=1).max(initial=0)
        return self.stamps + int(most) * STAMP_BYTES

    @cached_property
    def buffers(self) -> Ints:
        """Where each buffer starts: large ones on a page."""
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
        """Give what a rank needs memory for: offset and bytes."""
        yield 0, self._front
        sizes = (self.backed_bytes[:, rank] + (self.num_buffers - 1) * self.buffer_stride).tolist()
        yield from zip(self.buffers[:-1].tolist(), sizes, strict=True)


def require_rotation(layout: HeapLayout) -> None:
    """Raise where ranks that run ahead could touch what others still use.

    A rank may leave before the others when they reach no memory of its but scratch, whose
    copies rotate, and when a flag tells the state of one rank: a sum of several would let
    one of them stand for another.
    """
    table = layout.table
    scratch = np.asarray([b.role == "scratch" for b in table.schedule.buffers], bool)
    signals = np.flatnonzero(table.kind == Kind.SIGNAL)
    raised = table.flag_rank[signals].astype(np.int64) * table.schedule.num_flags
    pairs = np.stack([raised + table.flag_index[signals], layout.rank_of_row[signals]], axis=1)
    pairs = np.unique(pairs, axis=0)
    several = len(table.queues) > 1 or len(pairs) != len(np.unique(pairs[:, 0]))
    if several or not scratch.any() or (layout.shared.any(axis=1) & ~scratch).any():
        raise ScheduleError(
            f"{table.schedule.name} cannot rotate its scratch: it has none, or ranks touch other "
            "memory of each other, or raise one flag together."
        )


def require_bounds(layout: HeapLayout) -> None:
    """Raise where a command touches what the schedule does not declare."""
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
            f"{table.where(row_of[access])} touches bytes {offset[access]} to "
            f"{offset[access] + nbytes[access]} of {table.buffers[table.access_buffer[access]]}"
            f"@{rank[access]}, which has {room[access]}."
        )


def _require_ranks(
    table: Table, what: str, rank: NDArray[np.int32], index: NDArray[np.int32], number: int
) -> None:
    named = (rank != -1) | (index != -1)
    wrong = (rank < 0) | (rank >= table.schedule.num_ranks) | (index < 0) | (index >= number)
    for row in np.flatnonzero(named & wrong)[:1]:
        raise BoundsError(
            f"{table.where(row)} names {what} {index[row]} of rank {rank[row]}; there are "
            f"{number} on each of {table.schedule.num_ranks} ranks."
        )


_EQUAL = (Kind.COPY, Kind.BROADCAST, Kind.SWAP, Kind.REDUCE)


def require_equal_sizes(table: Table) -> None:
    """Raise where a command's slices differ in size but must not."""
    first = np.minimum(table.access_start[:-1], max(len(table.access_nbytes) - 1, 0))
    row_of = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
    wanted = table.access_nbytes[first[row_of]] if len(row_of) else table.access_nbytes
    wrong = np.isin(table.kind[row_of], _EQUAL) & (table.access_nbytes != wanted)
    for access in np.flatnonzero(wrong)[:1]:
        raise ScheduleError(
            f"{table.where(row_of[access])} joins slices of {wanted[access]} and "
            f"{table.access_nbytes[access]} bytes."
        )
