"""Two-level algorithms: inside a node, and between ranks with the same local rank."""

from weft.collectives import direct, halving_doubling, ring, tree
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
    to_all,
    wait,
)
from weft.errors import UsageError
from weft.schedule import (
    SELF,
    Buffer,
    Call,
    Copy,
    Group,
    Index,
    Program,
    Queue,
    Rel,
    Repeat,
    Schedule,
    Slice,
    Term,
    shifted,
)


def all_reduce(
    num_ranks: int, nbytes: int, *, node_size: int, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build an all-reduce: reduce-scatter inside, all-reduce between, all-gather inside nodes."""
    num_nodes = _num_nodes(num_ranks, node_size)
    intra_node = Group(node_size)
    chunks = Chunks(intra_node, nbytes, ITEM_BYTES[dtype])
    whole = (("data", "data", 0),)
    reduce = direct.reduce_in_place(node_size, nbytes, dtype=dtype, op=op)
    gather = direct.gather_in_place(node_size, nbytes, dtype=dtype)

    def program(ranks: range, name: str, size: int) -> Program:
        # Local rank j reduces chunk j between nodes, so all NICs of a node are used and each
        # carries 1/node_size of the data.
        across = halving_doubling.all_reduce(num_nodes, size, dtype=dtype, op=op)
        offset, _ = chunks.at(Index(intra_node))
        calls = (
            Call("reduce inside", reduce, intra_node, whole),
            Call(name, across, Group(num_nodes, node_size), (("data", "data", offset),)),
            Call("gather inside", gather, intra_node, whole),
        )
        return Program(ranks, (Queue("stream0", calls),))

    # Chunks of different sizes are different programs; equal ones are a single program, however
    # many ranks there are.
    if chunks.even:
        programs: tuple[Program, ...] = (program(range(num_ranks), "between", chunks.largest),)
    else:
        at = chunks.offsets
        programs = tuple(
            program(range(j, num_ranks, node_size), f"between {j}", at[j + 1] - at[j])
            for j in range(node_size)
        )
    return Schedule("hierarchical all_reduce", num_ranks, programs, (in_place(nbytes),))


def broadcast(num_ranks: int, nbytes: int, *, node_size: int, root: int = 0) -> Schedule:
    """Build a binomial tree between nodes, followed by a direct broadcast inside nodes."""
    num_nodes = _num_nodes(num_ranks, node_size)
    leader = root % node_size
    across = tree.binomial_broadcast(num_nodes, nbytes, root=root // node_size)
    fan_out = direct.broadcast(node_size, nbytes, root=leader)
    data = (("data", "data", 0),)
    inter_node = Call("between", across, Group(num_nodes, node_size), data)
    intra_node = Call("inside", fan_out, Group(node_size), data)
    programs = tuple(
        Program(
            range(local, num_ranks, node_size),
            (Queue("stream0", (inter_node, intra_node) if local == leader else (intra_node,)),),
        )
        for local in range(node_size)
    )
    return Schedule("hierarchical broadcast", num_ranks, programs, (in_place(nbytes),))


def all_gather(num_ranks: int, nbytes: int, *, node_size: int) -> Schedule:
    """Build a ring between ranks with the same local rank, then direct writes inside nodes."""
    num_nodes = _num_nodes(num_ranks, node_size)
    chunk = divided(nbytes, num_ranks, "all_gather")
    column = chunk * num_nodes
    calls = (
        Call(
            "between",
            ring.all_gather(num_nodes, column),
            Group(num_nodes, node_size),
            (("in", "in", 0), ("out", "column", 0)),
        ),
        Call(
            "inside",
            _spread_columns(node_size, num_nodes, chunk),
            Group(node_size),
            (("column", "column", 0), ("out", "out", 0)),
        ),
    )
    buffers = (*in_out(chunk, nbytes), Buffer("column", column))
    queue = Queue("stream0", calls)
    return schedule_of("hierarchical all_gather", num_ranks, [queue], buffers, 0)


def _spread_columns(node_size: int, num_nodes: int, chunk: int) -> Schedule:
    """Build a schedule: every rank writes the chunks of its column to all ranks of its node."""
    group = Group(node_size)
    ready, sent = 0, 1
    place = Rel(0, (0, node_size * chunk), (Term(Index(group), chunk),))
    here = Rel(0, (node_size * chunk,), (Term(Index(group), chunk),))
    peer = shifted(group, 1, 1)
    to_peer = Copy(own("column", Rel(0, (0, chunk)), chunk), Slice(peer, "out", place, chunk))
    local = Copy(own("column", Rel(0, (chunk,)), chunk), Slice(SELF, "out", here, chunk))
    first = (to_all(group, ready), Repeat(num_nodes, (local,)), wait(sent, node_size - 1))
    lane = (wait(ready, node_size - 1), Repeat(num_nodes, (to_peer,)), signal(peer, sent))
    queue = launched(first, Repeat(node_size - 1, lane))
    buffers = (
        Buffer("column", num_nodes * chunk, "in"),
        Buffer("out", num_nodes * node_size * chunk, "out"),
    )
    return schedule_of("spread columns", node_size, [queue], buffers, 2)


def _num_nodes(num_ranks: int, node_size: int) -> int:
    if node_size < 2 or num_ranks % node_size or num_ranks == node_size:
        several = node_size > 1 and num_ranks != node_size
        what = f"do not fill nodes of {node_size} ranks" if several else "are in one level"
        raise UsageError(
            f"hierarchical: needs two levels of ranks, but {num_ranks} ranks {what}.",
            "Choose a cluster such as mi300x-8x2, or another algorithm.",
        )
    return num_ranks // node_size
