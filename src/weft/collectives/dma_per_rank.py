"""Direct collectives by DMA engines; the host thread of each rank submits to its own engines.

Every rank writes to every other in one step, one engine per peer, as in the published study of DMA
collectives overlapped with GEMMs (arXiv 2412.14335). Engines do no arithmetic: a reduction is a
kernel between two steps of copies. The difference from ``dma`` is who submits: there one thread for
all ranks of a node, here one process per rank, as in torch.
"""

from collections.abc import Sequence

from weft.collectives.parts import (
    ITEM_BYTES,
    Chunks,
    Items,
    add_up,
    divided,
    in_out,
    in_place,
    own,
    signal,
    to_all,
    wait,
)
from weft.schedule import (
    SELF,
    Buffer,
    Command,
    Copy,
    Group,
    Index,
    Launch,
    Program,
    Queue,
    Reduce,
    Schedule,
    Slice,
    Submit,
    shifted,
)

READY, SENT, SYNC, REDUCED, GATHERED = range(5)
STREAM = "stream1"  # the stream of the reduction, concurrent with the computation on stream0


def all_gather(num_ranks: int, nbytes: int) -> Schedule:
    """Build an in-place all-gather: rank i's part is chunk i of ``data`` and goes to all ranks."""
    divided(nbytes, num_ranks, "all_gather")
    chunks = Chunks(Group(num_ranks), nbytes)
    place = Index(chunks.group)
    mine = chunks.slice(SELF, "data", place)
    moves = [
        _sent(Copy(mine, chunks.slice(shifted(chunks.group, k), "data", place)), chunks.group, k)
        for k in range(1, num_ranks)
    ]
    return _schedule("all_gather", num_ranks, moves, (in_place(nbytes),))


def all_to_all(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-to-all; one more engine copies the chunk that a rank keeps."""
    divided(nbytes, num_ranks, "all_to_all")
    chunks = Chunks(Group(num_ranks), nbytes)
    place = Index(chunks.group)
    moves: list[Items] = []
    for k in range(1, num_ranks):
        src = chunks.slice(SELF, "in", Index(chunks.group, k))
        there = chunks.slice(shifted(chunks.group, k), "out", place)
        moves.append(_sent(Copy(src, there), chunks.group, k))
    local = Copy(chunks.slice(SELF, "in", place), chunks.slice(SELF, "out", place))
    moves.append((local, signal(SELF, SYNC)))
    return _schedule("all_to_all", num_ranks, moves, in_out(nbytes, nbytes))


def reduce_scatter(
    num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build a reduce-scatter: engines deliver each rank's chunks, and a kernel reduces them."""
    chunk = divided(nbytes, num_ranks, "reduce_scatter")
    chunks = Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype])
    moves = [_sent(_to_slot(chunks, "in", k), chunks.group, k) for k in range(1, num_ranks)]
    add = _reduction(chunks, add_up(chunks, "in", own("out", 0, chunk), dtype, op))
    buffers = (*in_out(nbytes, chunk), chunks.slots)
    return _schedule("reduce_scatter", num_ranks, moves, buffers, kernel=add)


def all_reduce(num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum") -> Schedule:
    """Build an all-reduce: copies, a reduction on compute units, copies."""
    group = Group(num_ranks)
    chunks = Chunks(group, nbytes, ITEM_BYTES[dtype])
    place = Index(group)
    result = chunks.slice(SELF, "data", place)
    moves: list[Items] = []
    for k in range(1, num_ranks):
        peer = shifted(group, k)
        back = Copy(result, chunks.slice(peer, "data", place))
        out = (_to_slot(chunks, "data", k), signal(peer, SENT))
        moves.append((*out, wait(REDUCED), back, signal(peer, GATHERED), signal(SELF, SYNC)))
    add = _reduction(chunks, add_up(chunks, "data", result, dtype, op))
    after = (wait(GATHERED, num_ranks - 1),)
    buffers = (in_place(nbytes), chunks.slots)
    return _schedule("all_reduce", num_ranks, moves, buffers, kernel=add, after=after)


def broadcast(num_ranks: int, nbytes: int, *, root: int = 0) -> Schedule:
    """Build a broadcast in which the root writes to every other rank, one engine per rank."""
    group, data = Group(num_ranks), own("data", 0, nbytes)
    moves = [
        _sent(Copy(data, Slice(shifted(group, k), "data", 0, nbytes)), group, k)
        for k in range(1, num_ranks)
    ]
    others = tuple(rank for rank in range(num_ranks) if rank != root)
    ready = (wait(READY, num_ranks - 1),)
    sender = Queue("host", (*ready, *_submits(moves), wait(SYNC, num_ranks - 1)))
    receiver = Queue("host", (signal(root, READY), wait(SENT)))
    programs = (Program((root,), (sender, *_engines(moves))), Program(others, (receiver,)))
    return Schedule("engines broadcast", num_ranks, programs, (in_place(nbytes),), 5)


def _sent(copy: Copy, group: Group, k: int) -> Items:
    """Return a copy followed by signals to the peer k positions on and to our own host."""
    return (copy, signal(shifted(group, k), SENT), signal(SELF, SYNC))


def _to_slot(chunks: Chunks, source: str, k: int) -> Copy:
    """Return a copy of the chunk of the peer k positions on into its slot for us."""
    part = chunks.slice(SELF, source, Index(chunks.group, k))
    there = Slice(shifted(chunks.group, k), "scratch", (k - 1) * chunks.largest, part.nbytes)
    return Copy(part, there)


def _reduction(chunks: Chunks, add: Reduce) -> Launch:
    """Return a kernel that reduces the received chunks."""
    return Launch(((wait(SENT, chunks.group.size - 1), add, signal(SELF, REDUCED)),))


def _engines(moves: Sequence[Items]) -> list[Queue]:
    return [Queue(f"copy{number}", commands) for number, commands in enumerate(moves)]


def _submits(moves: Sequence[Items]) -> tuple[Command, ...]:
    return tuple(Submit(SELF, f"copy{n}", len(each)) for n, each in enumerate(moves))


def _schedule(
    name: str,
    num_ranks: int,
    moves: list[Items],
    buffers: tuple[Buffer, ...],
    *,
    kernel: Launch | None = None,
    after: Items = (),
) -> Schedule:
    """Build a schedule: each rank signals the others, submits to its engines, waits for completion.

    The kernel is launched once its input has arrived. If launched earlier it would hold its compute
    units while it waits.
    """
    group, others = Group(num_ranks), num_ranks - 1
    arrived: Items = (wait(SENT, others),)
    queues = _engines(moves)
    if kernel:
        queues.append(Queue(STREAM, (kernel,), priority=1))
        arrived += (Submit(SELF, STREAM, 1), wait(REDUCED))
    host = (
        to_all(group, READY),
        wait(READY, others),
        *_submits(moves),
        *arrived,
        *after,
        wait(SYNC, len(moves)),
    )
    program = Program(range(num_ranks), (Queue("host", host), *queues))
    return Schedule(f"engines {name}", num_ranks, (program,), buffers, 5)
