"""Direct algorithms: every rank writes to every other rank in one step, one lane per peer."""

from weft.collectives.parts import (
    ITEM_BYTES,
    Chunks,
    Items,
    add_up,
    divided,
    in_out,
    in_place,
    launched,
    only_on,
    own,
    schedule_of,
    signal,
    to_all,
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
    Queue,
    Rel,
    Repeat,
    Schedule,
    Slice,
    shifted,
)

# One latency (all-reduce: two) whatever the number of ranks, and all links of a full mesh at once,
# such as xGMI or NVSwitch: the choice for short messages inside a node. Between nodes n-1 messages
# a rank share one NIC.
READY, SENT, DONE, REDUCED = 0, 1, 2, 3


def all_gather(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-gather in which every rank writes its part to every other."""
    chunk = divided(nbytes, num_ranks, "all_gather")
    chunks = Chunks(Group(num_ranks), nbytes)
    mine, place = own("in", 0, chunk), Index(chunks.group)
    peer = shifted(chunks.group, 1, 1)
    to_peer = (wait(READY, num_ranks - 1), Copy(mine, chunks.slice(peer, "out", place)))
    local = (Copy(mine, chunks.slice(SELF, "out", place)),)
    queue = exchange(chunks.group, to_peer, local)
    return schedule_of("direct all_gather", num_ranks, [queue], in_out(chunk, nbytes), 3)


def all_to_all(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-to-all: chunk j of rank i becomes chunk i of rank j."""
    divided(nbytes, num_ranks, "all_to_all")
    chunks = Chunks(Group(num_ranks), nbytes)
    place, theirs = Index(chunks.group), Index(chunks.group, 1, (1,))
    peer = shifted(chunks.group, 1, 1)
    copy = Copy(chunks.slice(SELF, "in", theirs), chunks.slice(peer, "out", place))
    local = (Copy(chunks.slice(SELF, "in", place), chunks.slice(SELF, "out", place)),)
    queue = exchange(chunks.group, (wait(READY, num_ranks - 1), copy), local)
    return schedule_of("direct all_to_all", num_ranks, [queue], in_out(nbytes, nbytes), 3)


def reduce_scatter(
    num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build a reduce-scatter in which every rank sends chunk j to rank j, which reduces them."""
    chunk = divided(nbytes, num_ranks, "reduce_scatter")
    chunks = Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype])
    add = add_up(chunks, "in", own("out", 0, chunk), dtype, op)
    to_peer = (wait(READY, num_ranks - 1), _to_slot(chunks, "in"))
    queue = exchange(chunks.group, to_peer, (), after=(add,))
    buffers = (*in_out(nbytes, chunk), chunks.slots)
    return schedule_of("direct reduce_scatter", num_ranks, [queue], buffers, 3)


def all_reduce(num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum") -> Schedule:
    """Build a direct reduce-scatter and a direct all-gather in one kernel."""
    group = Group(num_ranks)
    chunks = Chunks(group, nbytes, ITEM_BYTES[dtype])
    place, peer = Index(group), shifted(group, 1, 1)
    result = chunks.slice(SELF, "data", place)
    lane = (
        wait(READY, num_ranks - 1),
        _to_slot(chunks, "data"),
        signal(peer, SENT),
        # The kernel's lanes are workgroups: the one that adds up raises a flag of its own rank for
        # the others.
        wait(REDUCED),
        Copy(result, chunks.slice(peer, "data", place)),
        signal(peer, DONE),
    )
    first = (
        to_all(group, READY),
        wait(SENT, num_ranks - 1),
        add_up(chunks, "data", result, dtype, op),
        signal(SELF, REDUCED),
        wait(DONE, num_ranks - 1),
    )
    queue = launched(first, Repeat(num_ranks - 1, lane))
    buffers = (in_place(nbytes), chunks.slots)
    return schedule_of("direct all_reduce", num_ranks, [queue], buffers, 4)


def reduce_in_place(
    num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build a reduce-scatter that leaves chunk i of ``data`` reduced on rank i, for any size."""
    chunks = Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype])
    add = add_up(chunks, "data", chunks.slice(SELF, "data", Index(chunks.group)), dtype, op)
    to_peer = (wait(READY, num_ranks - 1), _to_slot(chunks, "data"))
    queue = exchange(chunks.group, to_peer, (), after=(add,))
    buffers = (in_place(nbytes), chunks.slots)
    return schedule_of("direct reduce_scatter", num_ranks, [queue], buffers, 3)


def gather_in_place(num_ranks: int, nbytes: int, *, dtype: str = "uint8") -> Schedule:
    """Build an all-gather of chunk i of ``data`` from rank i, for any size."""
    chunks = Chunks(Group(num_ranks), nbytes, ITEM_BYTES[dtype])
    place, peer = Index(chunks.group), shifted(chunks.group, 1, 1)
    copy = Copy(chunks.slice(SELF, "data", place), chunks.slice(peer, "data", place))
    queue = exchange(chunks.group, (wait(READY, num_ranks - 1), copy), ())
    return schedule_of("direct all_gather", num_ranks, [queue], (in_place(nbytes),), 3)


def barrier(num_ranks: int, nbytes: int = 0) -> Schedule:
    """Build a barrier in which every rank signals every other."""
    del nbytes  # a barrier moves no data; the parameter keeps the signatures of all builders equal
    lane = (to_all(Group(num_ranks), SENT), wait(SENT, num_ranks - 1))
    return schedule_of("direct barrier", num_ranks, [launched(lane)], (), 2)


def broadcast(num_ranks: int, nbytes: int, *, root: int = 0) -> Schedule:
    """Build a broadcast in which the root writes to every other rank, one lane per rank."""
    group = Group(num_ranks)
    data = own("data", 0, nbytes)
    peer = shifted(group, 1, 1)
    lane = (wait(READY, num_ranks - 1), Copy(data, Slice(peer, "data", 0, nbytes)))
    return _rooted(
        "direct broadcast",
        root,
        group,
        from_root=(*lane, signal(peer, SENT)),
        at_others=(signal(root, READY), wait(SENT)),
        buffers=(in_place(nbytes),),
    )


def scatter(num_ranks: int, nbytes: int, *, root: int = 0) -> Schedule:
    """Build a scatter in which the root writes chunk j to rank j."""
    chunks = Chunks(Group(num_ranks), nbytes)
    peer, theirs = shifted(chunks.group, 1, 1), Index(chunks.group, 1, (1,))
    part = chunks.slice(SELF, "in", theirs)
    lane = (wait(READY, num_ranks - 1), Copy(part, Slice(peer, "out", 0, part.nbytes)))
    mine = chunks.slice(SELF, "in", Index(chunks.group))
    buffers = (
        Buffer("in", only_on(root, num_ranks, nbytes), "in"),
        Buffer("out", chunks.sizes, "out"),
    )
    return _rooted(
        "direct scatter",
        root,
        chunks.group,
        from_root=(*lane, signal(peer, SENT)),
        at_others=(signal(root, READY), wait(SENT)),
        at_root=(Copy(mine, own("out", 0, mine.nbytes)),),
        buffers=buffers,
    )


def gather(num_ranks: int, nbytes: int, *, root: int = 0) -> Schedule:
    """Build a gather in which every rank writes its part to the root."""
    chunks = Chunks(Group(num_ranks), nbytes)
    there = chunks.slice(root, "out", Index(chunks.group))
    mine = own("in", 0, there.nbytes)
    buffers = (
        Buffer("in", chunks.sizes, "in"),
        Buffer("out", only_on(root, num_ranks, nbytes), "out"),
    )
    return _rooted(
        "direct gather",
        root,
        chunks.group,
        from_root=(signal(shifted(chunks.group, 1, 1), READY),),
        at_others=(wait(READY), Copy(mine, there), signal(root, SENT)),
        at_root=(Copy(mine, there), wait(SENT, num_ranks - 1)),
        buffers=buffers,
    )


def send_recv(num_ranks: int, nbytes: int, *, root: int = 0, to: int = -1) -> Schedule:
    """Build a send from rank ``root`` to rank ``to`` (default: the last); other ranks are idle."""
    to = to % num_ranks
    if root == to:
        raise UsageError(f"to: rank {root} cannot send to itself.", "Name another receiver.")
    copy = Copy(own("in", 0, nbytes), Slice(to, "out", 0, nbytes))
    sender = launched((wait(READY), copy, signal(to, SENT)))
    receiver = launched((signal(root, READY), wait(SENT)))
    programs = (Program((root,), (sender,)), Program((to,), (receiver,)))
    buffers = (
        Buffer("in", only_on(root, num_ranks, nbytes), "in"),
        Buffer("out", only_on(to, num_ranks, nbytes), "out"),
    )
    return Schedule("direct send_recv", num_ranks, programs, buffers, 2)


def exchange(group: Group, to_peer: Items, local: Items, after: Items = ()) -> Queue:
    """Return one lane per peer, and one that signals readiness, works locally and waits."""
    others = group.size - 1
    first = (to_all(group, READY), *local, wait(SENT, others), *after)
    return launched(first, Repeat(others, (*to_peer, signal(shifted(group, 1, 1), SENT))))


def _to_slot(chunks: Chunks, source: str) -> Copy:
    """Return the copy that sends, in iteration k, the chunk of peer k + 1 into its slot k."""
    # Slot k of a rank has one writer: the rank k + 1 before it.
    part = chunks.slice(SELF, source, Index(chunks.group, 1, (1,)))
    peer, slot = shifted(chunks.group, 1, 1), chunks.largest
    return Copy(part, Slice(peer, "scratch", Rel(0, (slot,)), part.nbytes))


def _rooted(
    name: str,
    root: int,
    group: Group,
    *,
    from_root: Items,
    at_others: Items,
    at_root: Items = (),
    buffers: tuple[Buffer, ...],
) -> Schedule:
    """Build a schedule: the root runs ``from_root``, a lane per peer, the others ``at_others``."""
    others = tuple(r for r in range(group.size) if r != root)
    queue = launched(at_root, Repeat(group.size - 1, from_root))
    programs = (Program((root,), (queue,)), Program(others, (launched(at_others),)))
    return Schedule(name, group.size, programs, buffers, 2)
