"""Recursive halving and doubling: log2(n) steps; the peer differs in one bit of its rank."""

from dataclasses import dataclass

from weft.collectives.parts import (
    ITEM_BYTES,
    Chunks,
    Items,
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


def all_gather(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-gather by recursive doubling: each step doubles the data of a rank."""
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
    """Build a reduce-scatter by recursive halving: send one half, reduce the other."""
    _power_of_two(num_ranks, "reduce_scatter")
    chunk = divided(nbytes, num_ranks, "reduce_scatter")
    steps = _Steps(Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype]))
    # Partial sums are kept in a copy, because the caller keeps its input.
    copy_in = Copy(own("in", 0, nbytes), own("sums", 0, nbytes))
    place = steps.chunks.slice(SELF, "sums", Index(steps.chunks.group))
    copy_out = Copy(place, own("out", 0, chunk))
    lane = (*steps.greet(), copy_in, *steps.reduce("sums", dtype, op), copy_out)
    buffers = (*in_out(nbytes, chunk), Buffer("sums", nbytes), steps.scratch)
    flags = 3 * steps.count
    name = "halving-doubling reduce_scatter"
    return schedule_of(name, num_ranks, [launched(lane)], buffers, flags)


def all_reduce(num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum") -> Schedule:
    """Build an all-reduce by halving, then doubling.

    Ranks beyond the largest power of two first reduce into the ranks below it.
    """
    # Rabenseifner's algorithm (Thakur, Rabenseifner and Gropp, 2005): 2 log2(n) latencies and the
    # bytes of a ring. A number of ranks that is no power of two costs two more transfers of all
    # data.
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
            f"halving-doubling {what}: num_ranks is {num_ranks}, expected a power of two.",
            "Use ring or direct, which take any number of ranks.",
        )


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps over chunks: step s pairs ranks whose positions differ by n / 2^(s+1).

    Flags of step s: s for a peer that is ready, steps + s for received halves, 2 steps + s for
    received doubles.
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
        """Return the offset of a step's own receive buffer: a peer may be one step ahead."""
        return sum(self._largest(self.distance(s)) for s in range(step))

    def _largest(self, span: int) -> int:
        at, n = self.chunks.offsets, self.chunks.group.size
        return max(at[j + span] - at[j] for j in range(0, n, span))

    def _kept(self, distance: int, flip: int) -> Index:
        """Return the first chunk of the part that this rank (or its peer) keeps."""
        group = self.chunks.group
        # After the step with this distance a rank has ``distance`` chunks: those whose index agrees
        # with its position in all higher bits.
        return Index(group, flip, xor=True, mask=~(distance - 1) & (group.size - 1))

    # All peers are greeted at the start: the latency of a greeting is then hidden by the steps
    # before its use.
    def greet(self) -> Items:
        peers = (flipped(self.chunks.group, self.distance(s)) for s in range(self.count))
        return tuple(signal(peer, step) for step, peer in enumerate(peers))

    def reduce(self, buffer: str, dtype: str, op: str) -> Items:
        """Return the halving steps: send the half the peer keeps, reduce what it sends of mine."""
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
        """Return the doubling steps. ``greeted``: peers are known to be ready."""
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
