"""Recursive halving and doubling: log2(n) steps, the peer differs in one bit of its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.collectives.parts import (
    ITEM_BYTES,
    Chunks,
    divided,
    in_out,
    in_place,
    launched,
    own,
    schedule_of,
    signal,
    wait,
)
from weft.errors import UsageError
from weft.schedule import (
    SELF,
    Buffer,
    Copy,
    Group,
    Index,
    Program,
    Reduce,
    Schedule,
    Slice,
    flipped,
    shifted,
)

if TYPE_CHECKING:
    from weft.collectives.parts import Items


def all_gather(num_ranks: int, nbytes: int) -> Schedule:
    """Recursive doubling: each step doubles what a rank has."""
    _power_of_two(num_ranks, "all_gather")
    chunk = divided(nbytes, num_ranks, "all_gather")
    steps = _Steps(Chunks(Group(num_ranks), nbytes))
    place = steps.chunks.slice(SELF, "out", Index(steps.chunks.group))
    lane = (*steps.greet(), Copy(own("in", 0, chunk), place), *steps.gather("out", greeted=False))
    buffers = in_out(chunk, nbytes)
    flags = 3 * steps.count
    return schedule_of("halving-doubling all_gather", num_ranks, [launched(lane)], buffers, flags)


def reduce_scatter(
    num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Recursive halving: each step sends away half of what is left and adds the other half."""
    _power_of_two(num_ranks, "reduce_scatter")
    chunk = divided(nbytes, num_ranks, "reduce_scatter")
    steps = _Steps(Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype]))
    # Sums grow in a copy of the input, which the caller keeps.
    copy_in = Copy(own("in", 0, nbytes), own("sums", 0, nbytes))
    place = steps.chunks.slice(SELF, "sums", Index(steps.chunks.group))
    copy_out = Copy(place, own("out", 0, chunk))
    lane = (*steps.greet(), copy_in, *steps.reduce("sums", dtype, op), copy_out)
    buffers = (*in_out(nbytes, chunk), Buffer("sums", nbytes), steps.scratch)
    flags = 3 * steps.count
    name = "halving-doubling reduce_scatter"
    return schedule_of(name, num_ranks, [launched(lane)], buffers, flags)


def all_reduce(num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum") -> Schedule:
    """Halving, then doubling. Ranks beyond a power of two fold into the first ones."""
    power = 1 << (num_ranks.bit_length() - 1)
    extra = num_ranks - power
    steps = _Steps(Chunks(Group(power), nbytes, ITEM_BYTES[dtype]))
    core = (*steps.greet(), *steps.reduce("data", dtype, op), *steps.gather("data", greeted=True))
    fold, unfold = 3 * steps.count, 3 * steps.count + 1
    whole, folded = own("data", 0, nbytes), own("fold", 0, nbytes)
    partner, home = shifted(Group(num_ranks), power), shifted(Group(num_ranks), -power)
    first = (
        signal(partner, fold),
        wait(fold),
        Reduce((whole, folded), whole, dtype, op),
        *core,
        Copy(whole, Slice(partner, "data", 0, nbytes)),
        signal(partner, unfold),
    )
    last = (
        wait(fold),
        Copy(whole, Slice(home, "fold", 0, nbytes)),
        signal(home, fold),
        wait(unfold),
    )
    parts = (
        (range(extra), first),
        (range(extra, power), core),
        (range(power, num_ranks), last),
    )
    programs = tuple(Program(ranks, (launched(lane),)) for ranks, lane in parts if ranks)
    buffers: tuple[Buffer, ...] = (in_place(nbytes), steps.scratch)
    if extra:
        buffers = (*buffers, Buffer("fold", nbytes))
    name = "halving-doubling all_reduce"
    return Schedule(name, num_ranks, programs, buffers, unfold + 1)


def _power_of_two(num_ranks: int, what: str) -> None:
    if num_ranks & (num_ranks - 1):
        raise UsageError(
            f"halving-doubling {what} needs a power of two, not {num_ranks} ranks.",
            "ring and direct take any number.",
        )


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps over chunks: step s pairs ranks whose positions differ by n / 2^(s+1).

    Flags of step s: s a peer is ready, steps + s halves came, 2 steps + s doubles came.
    """

    chunks: Chunks

    @property
    def count(self) -> int:
        return self.chunks.group.size.bit_length() - 1

    def distance(self, step: int) -> int:
        return self.chunks.group.size >> (step + 1)

    @property
    def scratch(self) -> Buffer:
        return Buffer("scratch", self._scratch_at(self.count))

    def _scratch_at(self, step: int) -> int:
        """Each step receives into a place of its own: a fast peer is a step ahead of us."""
        return sum(self._largest(self.distance(s)) for s in range(step))

    def _largest(self, span: int) -> int:
        at, n = self.chunks.offsets, self.chunks.group.size
        return max(at[j + span] - at[j] for j in range(0, n, span))

    def _kept(self, distance: int, flip: int) -> Index:
        """The first chunk of the part that this rank (or its peer) keeps."""
        group = self.chunks.group
        return Index(group, flip, xor=True, mask=~(distance - 1) & (group.size - 1))

    def greet(self) -> Items:
        peers = (flipped(self.chunks.group, self.distance(s)) for s in range(self.count))
        return tuple(signal(peer, step) for step, peer in enumerate(peers))

    def reduce(self, buffer: str, dtype: str, op: str) -> Items:
        """Halving: send the half the peer keeps, add what it sends of mine."""
        items: Items = ()
        for step in range(self.count):
            d = self.distance(step)
            peer = flipped(self.chunks.group, d)
            theirs = self.chunks.slice(SELF, buffer, self._kept(d, d), d)
            mine = self.chunks.slice(SELF, buffer, self._kept(d, 0), d)
            slot = self._scratch_at(step)
            arrived = own("scratch", slot, mine.nbytes)
            items = (
                *items,
                wait(step),
                Copy(theirs, Slice(peer, "scratch", slot, theirs.nbytes)),
                signal(peer, self.count + step),
                wait(self.count + step),
                Reduce((mine, arrived), mine, dtype, op),
            )
        return items

    def gather(self, buffer: str, *, greeted: bool) -> Items:
        """Doubling: exchange all that either has. ``greeted``: peers are known to be ready."""
        items: Items = ()
        for step in reversed(range(self.count)):
            d = self.distance(step)
            peer, index = flipped(self.chunks.group, d), self._kept(d, 0)
            mine = self.chunks.slice(SELF, buffer, index, d)
            hold = () if greeted else (wait(step),)
            send = Copy(mine, Slice(peer, buffer, mine.offset, mine.nbytes))
            done = 2 * self.count + step
            items = (*items, *hold, send, signal(peer, done), wait(done))
        return items
