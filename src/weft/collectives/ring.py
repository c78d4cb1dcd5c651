"""Ring algorithms: in each step every rank sends one chunk to the next."""

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
    wait_next,
)
from weft.schedule import (
    SELF,
    Copy,
    Group,
    Index,
    Reduce,
    Rel,
    Repeat,
    Schedule,
    Slice,
    shifted,
)

# Each rank sends 2 (n-1)/n of the data in an all-reduce, which no algorithm can undercut (Patarasuk
# and Yuan, 2009), and uses one link at a time: the choice for long messages, at the price of 2(n-1)
# latencies.
READY, REDUCED, GATHERED = 0, 1, 2


def all_gather(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-gather in n-1 steps; step k forwards what step k-1 received."""
    chunk = divided(nbytes, num_ranks, "all_gather")
    chunks = Chunks(Group(num_ranks), nbytes)
    after = shifted(chunks.group, 1)
    mine, place = own("in", 0, chunk), Index(chunks.group)
    lane = (
        *_handshake(chunks.group),
        Copy(mine, chunks.slice(after, "out", place)),
        signal(after, GATHERED),
        *_pass_on(chunks, "out"),
    )
    # A lane of its own: the copy of a rank's own part must not delay the ring.
    local = (Copy(mine, chunks.slice(SELF, "out", place)),)
    buffers = in_out(chunk, nbytes)
    return schedule_of("ring all_gather", num_ranks, [launched(lane, local)], buffers, 3)


def reduce_scatter(
    num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build a reduce-scatter in n-1 steps; chunk i ends reduced on rank i."""
    chunk = divided(nbytes, num_ranks, "reduce_scatter")
    chunks = Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype])
    result = own("out", 0, chunk)
    lane = (*_handshake(chunks.group), *_reduce(chunks, "in", result, dtype, op))
    buffers = (*in_out(nbytes, chunk), chunks.slots)
    return schedule_of("ring reduce_scatter", num_ranks, [launched(lane)], buffers, 3)


def all_reduce(num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum") -> Schedule:
    """Build an all-reduce in 2(n-1) steps, each moving one chunk to the next rank.

    The first n-1 steps reduce-scatter, the last n-1 all-gather. Rank r sends in step s only what it
    received in step s-1, so one flag per step is all the synchronization needed.
    """
    chunks = Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype])
    after, place = shifted(chunks.group, 1), Index(chunks.group)
    result = chunks.slice(SELF, "data", place)
    lane = (
        *_handshake(chunks.group),
        *_reduce(chunks, "data", result, dtype, op),
        Copy(result, chunks.slice(after, "data", place)),
        signal(after, GATHERED),
        *_pass_on(chunks, "data"),
    )
    buffers = (in_place(nbytes), chunks.slots)
    return schedule_of("ring all_reduce", num_ranks, [launched(lane)], buffers, 3)


def _handshake(group: Group) -> Items:
    """Return commands that signal readiness to the previous rank and wait for the next rank."""
    return (signal(shifted(group, -1), READY), wait(READY))


def _pass_on(chunks: Chunks, buffer: str) -> Items:
    """Return commands that forward the n-2 chunks that arrive first, and wait for the last."""
    steps = chunks.group.size - 1
    after, index = shifted(chunks.group, 1), Index(chunks.group, -1, (-1,))
    copy = Copy(chunks.slice(SELF, buffer, index), chunks.slice(after, buffer, index))
    return (
        Repeat(steps - 1, (wait_next(GATHERED), copy, signal(after, GATHERED))),
        wait(GATHERED, steps),
    )


def _reduce(chunks: Chunks, source: str, result: Slice, dtype: str, op: str) -> Items:
    """Return n-1 steps that leave the reduced chunk i of ``source`` in ``result`` on rank i.

    Step k sends the partial sum of chunk i-1-k; what arrives is chunk i-2-k, to which this rank
    adds its own part. Every step has its own slot in the scratch buffer, so nothing is overwritten
    before it is read.
    """
    # NCCL reuses a few slots and returns credits for them. With n-1 slots of 1/n of the data no
    # credits are needed, and the scratch buffer is still no larger than the data.
    group, slot, steps = chunks.group, chunks.largest, chunks.group.size - 1
    after = shifted(group, 1)
    first = chunks.slice(SELF, source, Index(group, -1))
    part = chunks.slice(SELF, source, Index(group, -2, (-1,)))
    slot_here = own("scratch", Rel(0, (slot,)), part.nbytes)
    slot_there = Slice(after, "scratch", Rel(slot, (slot,)), part.nbytes)
    add = Reduce((slot_here, part), slot_here, dtype, op)
    last = chunks.slice(SELF, source, Index(group))
    slot_last = own("scratch", (steps - 1) * slot, last.nbytes)
    return (
        Copy(first, Slice(after, "scratch", 0, first.nbytes)),
        signal(after, REDUCED),
        Repeat(
            steps - 1,
            (wait_next(REDUCED), add, Copy(slot_here, slot_there), signal(after, REDUCED)),
        ),
        wait(REDUCED, steps),
        Reduce((slot_last, last), result, dtype, op),
    )
