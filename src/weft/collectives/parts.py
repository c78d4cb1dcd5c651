"""What builders share: a vector divided into chunks, and the shapes of common programs.

Every builder follows one rule, which the checks enforce: whatever another rank does to my buffers
happens between my entry and my exit. So a rank signals that it is *ready* before anyone writes to
it, and waits for every write before it leaves. A schedule that follows the rule can be run
repeatedly, and the caller may touch its buffers in between.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from weft.errors import SizeError
from weft.hardware.dtypes import item_bytes
from weft.schedule import (
    SELF,
    Broadcast,
    Buffer,
    Command,
    Copy,
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
from weft.schedule.values import RankValue, Value

Items = tuple[Command | Repeat, ...]

# The dtypes that reductions support, by their torch names.
ITEM_BYTES = {
    name: int(item_bytes(name))
    for name in (
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128"),
    )
}


def is_premultiplied(op: str) -> bool:
    """Return whether a reduction multiplies each source first.

    >>> is_premultiplied("premul:0.5"), is_premultiplied("sum")
    (True, False)
    """
    return op.partition(":")[0] == "premul"


def divided(nbytes: int, num_ranks: int, what: str) -> int:
    """Return a rank's share of ``nbytes``; raise if the ranks do not divide it evenly."""
    if nbytes % num_ranks:
        below = nbytes - nbytes % num_ranks
        raise SizeError(
            f"{what}: {nbytes} bytes are not divisible by {num_ranks} ranks.",
            f"Use {below} or {below + num_ranks} bytes.",
        )
    return nbytes // num_ranks


def own(buffer: str, offset: Value, nbytes: Value) -> Slice:
    """Return a slice of this rank's own buffer."""
    return Slice(SELF, buffer, offset, nbytes)


@dataclass(frozen=True, slots=True)
class Chunks:
    """``nbytes`` divided into one chunk per position of ``group``, as evenly as items allow."""

    group: Group
    nbytes: int
    item: int = 1

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offset of each chunk, and the end of the last one."""
        count, rest = divmod(self.nbytes // self.item, self.group.size)
        n = self.group.size
        starts = [self.item * (j * count + min(j, rest)) for j in range(n)]
        return (*starts, self.nbytes)

    @property
    def even(self) -> bool:
        """Whether all chunks have equal sizes."""
        return self.nbytes % (self.group.size * self.item) == 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each chunk in bytes."""
        return tuple(stop - start for start, stop in pairwise(self.offsets))

    @property
    def largest(self) -> int:
        """The size of the largest chunk in bytes."""
        return max(self.sizes)

    @property
    def slots(self) -> Buffer:
        """A scratch buffer with room for a chunk of every other rank."""
        return Buffer("scratch", (self.group.size - 1) * self.largest)

    def at(self, index: Index, span: int = 1) -> tuple[Value, Value]:
        """Return offset and size of the ``span`` chunks starting at ``index``."""
        if self.even:
            each = self.nbytes // self.group.size
            return Rel(terms=(Term(index, each),)), each * span
        offsets = self.offsets
        last = self.group.size
        sizes = tuple(offsets[min(j + span, last)] - offsets[j] for j in range(last))
        starts = Term(index, table=offsets[:-1])
        return Rel(terms=(starts,)), Rel(terms=(Term(index, table=sizes),))

    def slice(self, rank: RankValue, buffer: str, index: Index, span: int = 1) -> Slice:
        """Return the ``span`` chunks starting at ``index``, in a buffer of ``rank``."""
        offset, nbytes = self.at(index, span)
        return Slice(rank, buffer, offset, nbytes)


def add_up(chunks: Chunks, source: str, result: Slice, dtype: str, op: str) -> Reduce:
    """Return the reduction of my own part, then those of the ranks before me, nearest first.

    The order is fixed, so every run gives the same bits.
    """
    mine = chunks.slice(SELF, source, Index(chunks.group))
    slots = (own("scratch", k * chunks.largest, mine.nbytes) for k in range(chunks.group.size - 1))
    return Reduce((mine, *slots), result, dtype, op)


def ranks_after(me: int, num_ranks: int) -> tuple[int, ...]:
    """Return the other ranks, the next one first, so that not all read from the same rank."""
    return tuple((me + k) % num_ranks for k in range(1, num_ranks))


def copied_to(mine: Slice, others: tuple[Slice, ...]) -> Items:
    """Return the commands that copy a slice to the others: a broadcast to several."""
    if len(others) > 1:
        return (Broadcast(mine, others),)
    return tuple(Copy(mine, other) for other in others)


def to_all(group: Group, flag: int) -> Repeat:
    """Return one signal of ``flag`` to every other member of the group."""
    return Repeat(group.size - 1, (Signal(Flag(shifted(group, 1, 1), flag)),))


def signal(rank: RankValue, flag: int) -> Signal:
    """Return a signal of a flag of ``rank``."""
    return Signal(Flag(rank, flag))


def wait(flag: int, count: Value = 1) -> Wait:
    """Return a wait for one of this rank's own flags."""
    return Wait(Flag(SELF, flag), count)


def wait_next(flag: int) -> Wait:
    """Return a wait for signal k + 1 in iteration k of a loop."""
    return wait(flag, Rel(1, (1,)))


# A pipeline of K pieces over a chain of n ranks takes (n - 2 + K) / K of the time of the data: with
# 64 pieces about 10 % more on 8 ranks.
def default_piece(nbytes: int) -> int:
    """Return the piece size of a pipeline of about 64 pieces, none dominated by latency."""
    return max(16 << 10, min(4 << 20, -(-nbytes // 64 // 64) * 64))


def in_pieces(
    nbytes: int, piece: int, body: Callable[[Value, int, Value], Items]
) -> tuple[Items, int]:
    """Return the commands of ``body(offset, size, number)`` for each piece, and their number.

    Pieces are numbered from one; there is at least one, which may be empty.
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
    """Return the queue of a core-driven collective: one kernel on the first stream."""
    return Queue("stream0", (Launch(tuple(lane for lane in lanes if lane != ())),))


def schedule_of(
    name: str, num_ranks: int, queues: Iterable[Queue], buffers: tuple[Buffer, ...], num_flags: int
) -> Schedule:
    """Build a schedule in which all ranks run the same program."""
    programs = (Program(range(num_ranks), tuple(queues)),)
    return Schedule(name, num_ranks, programs, buffers, num_flags)


def in_out(in_bytes: int, out_bytes: int) -> tuple[Buffer, ...]:
    """Return the buffers of a collective that preserves its input."""
    return (Buffer("in", in_bytes, "in"), Buffer("out", out_bytes, "out"))


def in_place(nbytes: int) -> Buffer:
    """Return the buffer of a collective that overwrites its input."""
    return Buffer("data", nbytes, "inout")


def only_on(rank: int, num_ranks: int, nbytes: int) -> tuple[int, ...]:
    """Return the sizes of a buffer that exists on one rank only."""
    return tuple(nbytes if r == rank else 0 for r in range(num_ranks))
