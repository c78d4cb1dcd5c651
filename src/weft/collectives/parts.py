"""What builders share: a vector cut into chunks, and the shapes of common programs.

Every builder keeps one rule, which the checks enforce: whatever another rank does to my
buffers happens between my entry and my exit. So a rank says that it is *ready* before
anyone writes to it, and waits for every write before it leaves. A schedule that keeps the
rule can be run again and again with the caller touching its buffers in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from weft.errors import SizeError
from weft.schedule import (
    SELF,
    Buffer,
    Flag,
    Group,
    Index,
    Launch,
    Program,
    Queue,
    Reduce,
    Rel,
    Repeat,
    Schedule,
    Signal,
    Slice,
    Term,
    Wait,
    shifted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from weft.schedule import Command
    from weft.schedule.values import RankValue, Value

    Items = tuple[Command | Repeat, ...]

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
}


def divided(nbytes: int, num_ranks: int, what: str) -> int:
    """A rank's share of ``nbytes``; ``what`` takes only sizes that the ranks divide."""
    if nbytes % num_ranks:
        below = nbytes - nbytes % num_ranks
        raise SizeError(
            f"{what} of {nbytes} bytes cannot be shared evenly by {num_ranks} ranks.",
            f"Try {below} or {below + num_ranks} bytes.",
        )
    return nbytes // num_ranks


def own(buffer: str, offset: Value, nbytes: Value) -> Slice:
    """A slice of this rank's own buffer."""
    return Slice(SELF, buffer, offset, nbytes)


@dataclass(frozen=True, slots=True)
class Chunks:
    """``nbytes`` cut into one chunk for each position of ``group``, as even as items allow."""

    group: Group
    nbytes: int
    item: int = 1

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each chunk starts, and at the end where the last one stops."""
        count, rest = divmod(self.nbytes // self.item, self.group.size)
        n = self.group.size
        starts = [self.item * (j * count + min(j, rest)) for j in range(n)]
        return (*starts, self.nbytes)

    @property
    def even(self) -> bool:
        """Whether all chunks are equally long."""
        return self.nbytes % (self.group.size * self.item) == 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each chunk."""
        return tuple(stop - start for start, stop in pairwise(self.offsets))

    @property
    def largest(self) -> int:
        """The bytes of the longest chunk."""
        return max(self.sizes)

    @property
    def slots(self) -> Buffer:
        """Scratch memory with room for a chunk of every other rank."""
        return Buffer("scratch", (self.group.size - 1) * self.largest)

    def at(self, index: Index, span: int = 1) -> tuple[Value, Value]:
        """Offset and size of the ``span`` chunks from ``index`` on."""
        if self.even:
            each = self.nbytes // self.group.size
            return Rel(terms=(Term(index, each),)), each * span
        offsets = self.offsets
        last = self.group.size
        sizes = tuple(offsets[min(j + span, last)] - offsets[j] for j in range(last))
        starts = Term(index, table=offsets[:-1])
        return Rel(terms=(starts,)), Rel(terms=(Term(index, table=sizes),))

    def slice(self, rank: RankValue, buffer: str, index: Index, span: int = 1) -> Slice:
        """The ``span`` chunks from ``index`` on, in a buffer of ``rank``."""
        offset, nbytes = self.at(index, span)
        return Slice(rank, buffer, offset, nbytes)


def add_up(chunks: Chunks, source: str, result: Slice, dtype: str, op: str) -> Reduce:
    """My own part, then those of the ranks before me, nearest first: the same in every run."""
    mine = chunks.slice(SELF, source, Index(chunks.group))
    slots = (own("scratch", k * chunks.largest, mine.nbytes) for k in range(chunks.group.size - 1))
    return Reduce((mine, *slots), result, dtype, op)


def to_all(group: Group, flag: int) -> Repeat:
    """One signal of ``flag`` to every other member of the group."""
    return Repeat(group.size - 1, (Signal(Flag(shifted(group, 1, 1), flag)),))


def signal(rank: RankValue, flag: int) -> Signal:
    """Raise a flag of ``rank``."""
    return Signal(Flag(rank, flag))


def wait(flag: int, count: Value = 1) -> Wait:
    """Hold for a flag of our own."""
    return Wait(Flag(SELF, flag), count)


def wait_next(flag: int) -> Wait:
    """In iteration k of a loop: wait for signal k + 1."""
    return wait(flag, Rel(1, (1,)))


def default_piece(nbytes: int) -> int:
    """A pipeline of about 64 pieces, none so small that its latency is all it costs."""
    return max(16 << 10, min(4 << 20, -(-nbytes // 64 // 64) * 64))


def in_pieces(
    nbytes: int, piece: int, body: Callable[[Value, int, Value], Items]
) -> tuple[Items, int]:
    """``body(offset, size, number)`` for each piece, the number counting from one.

    Returns the commands and the number of pieces: at least one, which may be empty.
    """
    full, rest = divmod(nbytes, piece)
    items: Items = ()
    if full:
        items = (Repeat(full, body(Rel(0, (piece,)), piece, Rel(1, (1,)))),)
    if rest or not full:
        items = (*items, *body(full * piece, rest, full + 1))
        full += 1
    return items, full


def launched(*lanes: Items | Repeat) -> Queue:
    """A core-driven collective: one kernel on the first stream."""
    return Queue("stream0", (Launch(tuple(lane for lane in lanes if lane != ())),))


def schedule_of(
    name: str, num_ranks: int, queues: Iterable[Queue], buffers: tuple[Buffer, ...], num_flags: int
) -> Schedule:
    """A schedule in which all ranks run the same program."""
    programs = (Program(range(num_ranks), tuple(queues)),)
    return Schedule(name, num_ranks, programs, buffers, num_flags)


def in_out(in_bytes: int, out_bytes: int) -> tuple[Buffer, ...]:
    """The buffers of a collective that leaves its input alone."""
    return (Buffer("in", in_bytes, "in"), Buffer("out", out_bytes, "out"))


def in_place(nbytes: int) -> Buffer:
    """The buffer of a collective that overwrites its input."""
    return Buffer("data", nbytes, "inout")


def only_on(rank: int, num_ranks: int, nbytes: int) -> tuple[int, ...]:
    """The sizes of a buffer that only one rank has."""
    return tuple(nbytes if r == rank else 0 for r in range(num_ranks))
