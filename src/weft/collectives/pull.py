"""Pull algorithms: a rank reads what it needs directly from its peers' memory.

Every byte of a result is moved once, by the rank that needs it, and others access only inputs. A
reduction reads all its sources at once, in rank order, so that results do not depend on who
computes which part. Made for shared memory, where reading is as cheap as writing;
``push_all_gather`` writes instead.
"""

from itertools import pairwise

from weft.collectives.parts import (
    ITEM_BYTES,
    Chunks,
    Items,
    copied_to,
    divided,
    in_out,
    in_place,
    launched,
    only_on,
    own,
    ranks_after,
    schedule_of,
    signal,
    to_all,
    wait,
)
from weft.schedule import (
    SELF,
    Broadcast,
    Buffer,
    Copy,
    Group,
    Index,
    Program,
    Queue,
    Reduce,
    Repeat,
    Schedule,
    Slice,
    shifted,
)

READY, DONE = 0, 1
PIECE = 128 << 10  # reduced and forwarded while it is in the second-level cache
SHARED_WORK = 128 << 10  # from this size on, the root of a broadcast writes a share itself


def all_gather(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-gather in which every rank reads the parts of all others."""
    chunk = divided(nbytes, num_ranks, "all_gather")
    chunks = Chunks(Group(num_ranks), nbytes)
    theirs, place = Index(chunks.group, 1, (1,)), Index(chunks.group)
    source = Slice(shifted(chunks.group, 1, 1), "in", 0, chunk)
    local = Copy(own("in", 0, chunk), chunks.slice(SELF, "out", place))
    each = Copy(source, chunks.slice(SELF, "out", theirs))
    queue = _pulling(chunks.group, (local,), (each,))
    return schedule_of("pull all_gather", num_ranks, [queue], in_out(chunk, nbytes), 2)


def push_all_gather(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-gather in which every rank writes its part into all outputs.

    For data that no cache holds: what has several receivers is read once and written to all of them
    piece by piece, so memory traffic is a third to a half lower than if every receiver read it.
    """
    chunk = divided(nbytes, num_ranks, "all_gather")
    programs = []
    for rank in range(num_ranks):
        rooms = tuple(Slice(r, "out", rank * chunk, chunk) for r in range(num_ranks))
        work = (Broadcast(own("in", 0, chunk), rooms),)
        programs.append(Program((rank,), (together(Group(num_ranks), work),)))
    return Schedule("push all_gather", num_ranks, tuple(programs), in_out(chunk, nbytes), 2)


def all_to_all(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-to-all: chunk j of rank i becomes chunk i of rank j."""
    divided(nbytes, num_ranks, "all_to_all")
    chunks = Chunks(Group(num_ranks), nbytes)
    place, theirs = Index(chunks.group), Index(chunks.group, 1, (1,))
    source = chunks.slice(shifted(chunks.group, 1, 1), "in", place)
    local = Copy(chunks.slice(SELF, "in", place), chunks.slice(SELF, "out", place))
    each = Copy(source, chunks.slice(SELF, "out", theirs))
    queue = _pulling(chunks.group, (local,), (each,))
    return schedule_of("pull all_to_all", num_ranks, [queue], in_out(nbytes, nbytes), 2)


def reduce_scatter(
    num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build a reduce-scatter in which every rank reduces its chunk of all inputs."""
    chunk = divided(nbytes, num_ranks, "reduce_scatter")
    chunks = Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype])
    add = Reduce(_everyones(chunks), own("out", 0, chunk), dtype, op)
    queue = together(chunks.group, (add,))
    return schedule_of("pull reduce_scatter", num_ranks, [queue], in_out(nbytes, chunk), 2)


def all_reduce(num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum") -> Schedule:
    """Build an all-reduce in which every rank reduces its chunk and writes it to all, in pieces.

    A piece of chunk i is accessed only by rank i, on all ranks: it reads all copies, then
    overwrites them. So no synchronization is needed between the two.
    """
    chunks = Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype])
    programs = []
    for rank, (start, stop) in enumerate(pairwise(chunks.offsets)):
        work: Items = ()
        for at in range(start, stop, PIECE):
            size = min(PIECE, stop - at)
            everywhere = tuple(Slice(r, "data", at, size) for r in range(num_ranks))
            mine, others = everywhere[rank], everywhere[:rank] + everywhere[rank + 1 :]
            work += (Reduce(everywhere, mine, dtype, op), *copied_to(mine, others))
        programs.append(Program((rank,), (together(chunks.group, work),)))
    return Schedule("pull all_reduce", num_ranks, tuple(programs), (in_place(nbytes),), 2)


def reduce(
    num_ranks: int, nbytes: int, *, root: int = 0, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build a reduce in which every rank reduces its chunk of all inputs into the root's output."""
    chunks = Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype])
    result = chunks.slice(root, "out", Index(chunks.group))
    add = Reduce(_everyones(chunks), result, dtype, op)
    out = Buffer("out", only_on(root, num_ranks, nbytes), "out")
    buffers = (Buffer("in", nbytes, "in"), out)
    queue = together(chunks.group, (add,))
    return schedule_of("pull reduce", num_ranks, [queue], buffers, 2)


def broadcast(num_ranks: int, nbytes: int, *, root: int = 0) -> Schedule:
    """Build a broadcast in which every rank reads from the root.

    For large messages the root writes a share itself.
    """
    group = Group(num_ranks)
    # Otherwise the root's core idles while n-1 others copy. Shares are whole cache lines.
    share = nbytes // num_ranks // 64 * 64 if nbytes >= SHARED_WORK else 0
    peer = shifted(group, 1, 1)
    push = Copy(own("data", 0, share), Slice(peer, "data", 0, share))
    pull = Copy(Slice(root, "data", share, nbytes - share), own("data", share, nbytes - share))
    pushed = (wait(READY, num_ranks - 1), push) if share else ()
    first = (to_all(group, READY), wait(DONE, num_ranks - 1))
    at_root = launched(first, Repeat(num_ranks - 1, (*pushed, signal(peer, DONE))))
    at_others = (signal(root, READY), wait(READY), pull, signal(root, DONE), wait(DONE))
    others = tuple(r for r in range(num_ranks) if r != root)
    programs = (Program((root,), (at_root,)), Program(others, (launched(at_others),)))
    return Schedule("pull broadcast", num_ranks, programs, (in_place(nbytes),), 2)


def exchange(num_ranks: int, nbytes: int = 1) -> Schedule:
    """Build an exchange: rank i reads ``to{i}`` of rank j into its ``from{j}``, of any size.

    This is an uneven all-to-all when it runs with slices as long as the bound buffers.
    """
    ranks = range(num_ranks)
    buffers = [Buffer(f"to{r}", nbytes, "in") for r in ranks]
    buffers += [Buffer(f"from{r}", nbytes, "out") for r in ranks]
    programs = []
    for me in ranks:
        lanes = [
            (
                wait(READY, num_ranks - 1),
                Copy(Slice(peer, f"to{me}", 0, nbytes), own(f"from{peer}", 0, nbytes)),
                signal(peer, DONE),
            )
            for peer in ranks_after(me, num_ranks)
        ]
        local = Copy(own(f"to{me}", 0, nbytes), own(f"from{me}", 0, nbytes))
        first = (to_all(Group(num_ranks), READY), local, wait(DONE, num_ranks - 1))
        programs.append(Program((me,), (launched(first, *lanes),)))
    return Schedule("pull exchange", num_ranks, tuple(programs), tuple(buffers), 2)


def _pulling(group: Group, local: Items, each: Items) -> Queue:
    """Return one lane per peer that reads from it, and one that signals and works locally."""
    peer, others = shifted(group, 1, 1), group.size - 1
    first = (to_all(group, READY), *local, wait(DONE, others))
    return launched(first, Repeat(others, (wait(READY, others), *each, signal(peer, DONE))))


def together(group: Group, work: Items) -> Queue:
    """Return a queue that signals, works once all ranks are ready, and leaves when all are done."""
    others = group.size - 1
    # Two synchronizations, as in MPI's one-sided fence: no rank reads before all inputs exist,
    # and no rank leaves, and changes its input, before all have read it.
    lane = (to_all(group, READY), wait(READY, others), *work)
    return launched((*lane, to_all(group, DONE), wait(DONE, others)))


def _everyones(chunks: Chunks) -> tuple[Slice, ...]:
    """Return my chunk of every rank's data, in rank order."""
    place = Index(chunks.group)
    return tuple(chunks.slice(rank, "in", place) for rank in range(chunks.group.size))
