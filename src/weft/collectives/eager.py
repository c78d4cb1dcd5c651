"""Eager algorithms: a rank copies its data into the symmetric heap, and peers read it from there.

Only the caller accesses its own memory, so that memory need not be shared, and a sender does not
wait for its receivers. The price is one more copy, so this suits small messages. Every flag has a
single sender, so a rank may run ahead if the scratch buffers rotate: then it waits only for data
from others, and the waits at the end apply to an earlier execution.
"""

from collections.abc import Callable

from weft.collectives.parts import (
    Chunks,
    Items,
    divided,
    in_out,
    in_place,
    launched,
    only_on,
    own,
    ranks_after,
    signal,
    wait,
)
from weft.schedule import Buffer, Copy, Group, Program, Reduce, Schedule, Signal, Slice, Wait
from weft.schedule.values import Value


# The eager protocol of MPI libraries: data goes to a buffer that always exists, without a
# rendezvous.
def all_gather(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-gather in which every rank reads the parts of all others."""
    chunk = divided(nbytes, num_ranks, "all_gather")

    def take(me: int, peer: int) -> Items:
        return (Copy(_laid(me, peer, chunk), own("out", peer * chunk, chunk)),)

    mine = own("in", 0, chunk)
    return _everyone("all_gather", num_ranks, mine, take, in_out(chunk, nbytes))


def all_to_all(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-to-all: chunk j of rank i becomes chunk i of rank j."""
    chunk = divided(nbytes, num_ranks, "all_to_all")

    def take(me: int, peer: int) -> Items:
        source = own("in", me * chunk, chunk)
        if peer != me:
            source = Slice(peer, "scratch", me * chunk, chunk)
        return (Copy(source, own("out", peer * chunk, chunk)),)

    mine = own("in", 0, nbytes)
    return _everyone("all_to_all", num_ranks, mine, take, in_out(nbytes, nbytes))


def all_reduce(num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum") -> Schedule:
    """Build an all-reduce in which every rank reduces in rank order: all get the same bits."""

    def join(me: int) -> Items:
        sources = tuple(_laid(me, rank, nbytes, "data") for rank in range(num_ranks))
        return (Reduce(sources, own("data", 0, nbytes), dtype, op),)

    data = own("data", 0, nbytes)
    return _everyone("all_reduce", num_ranks, data, _nothing, (in_place(nbytes),), join)


def reduce_scatter(
    num_ranks: int, nbytes: int, *, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build a reduce-scatter in which every rank reduces its chunk of all inputs."""
    chunk = divided(nbytes, num_ranks, "reduce_scatter")

    def join(me: int) -> Items:
        sources = (
            Slice(rank, "in" if rank == me else "scratch", me * chunk, chunk)
            for rank in range(num_ranks)
        )
        return (Reduce(tuple(sources), own("out", 0, chunk), dtype, op),)

    mine = own("in", 0, nbytes)
    return _everyone("reduce_scatter", num_ranks, mine, _nothing, in_out(nbytes, chunk), join)


def broadcast(num_ranks: int, nbytes: int, *, root: int = 0) -> Schedule:
    """Build a broadcast in which every rank reads from the root, which waits for no data."""
    data = own("data", 0, nbytes)

    def taken(me: int) -> Items:
        return (Copy(_laid(me, root, nbytes), own("data", 0, nbytes)),)

    return _from_root("broadcast", num_ranks, root, (data, ()), taken, (in_place(nbytes),))


def scatter(num_ranks: int, nbytes: int, *, root: int = 0) -> Schedule:
    """Build a scatter in which every rank reads its chunk from the root."""
    chunks = Chunks(Group(num_ranks), nbytes)
    starts, sizes = chunks.offsets, chunks.sizes

    def taken(me: int) -> Items:
        part = Slice(root, "scratch", starts[me], sizes[me])
        return (Copy(part, own("out", 0, sizes[me])),)

    kept = Copy(own("in", starts[root], sizes[root]), own("out", 0, sizes[root]))
    whole = own("in", 0, nbytes)
    buffers = (Buffer("in", only_on(root, num_ranks, nbytes), "in"), Buffer("out", sizes, "out"))
    return _from_root("scatter", num_ranks, root, (whole, (kept,)), taken, buffers)


def gather(num_ranks: int, nbytes: int, *, root: int = 0) -> Schedule:
    """Build a gather in which the root reads from all others."""
    chunks = Chunks(Group(num_ranks), nbytes)
    starts, sizes = chunks.offsets, chunks.sizes

    def take(rank: int) -> Items:
        source = Slice(rank, "in" if rank == root else "scratch", 0, sizes[rank])
        return (Copy(source, own("out", starts[rank], sizes[rank])),)

    buffers = (Buffer("in", sizes, "in"), Buffer("out", only_on(root, num_ranks, nbytes), "out"))
    return _to_root("gather", num_ranks, root, sizes, take, buffers)


def reduce(
    num_ranks: int, nbytes: int, *, root: int = 0, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build a reduce in which the root reduces all inputs in rank order."""
    sources = tuple(
        Slice(rank, "in" if rank == root else "scratch", 0, nbytes) for rank in range(num_ranks)
    )
    add = Reduce(sources, own("out", 0, nbytes), dtype, op)
    buffers = (
        Buffer("in", nbytes, "in"),
        Buffer("out", only_on(root, num_ranks, nbytes), "out"),
    )
    sizes = (nbytes,) * num_ranks
    return _to_root("reduce", num_ranks, root, sizes, lambda _: (), buffers, (add,))


def barrier(num_ranks: int, nbytes: int = 0) -> Schedule:  # noqa: ARG001 - as all builders
    """Build a barrier in which every rank signals every other."""
    programs = tuple(
        _program(
            me, (*_ready(me, num_ranks), *(_there(peer) for peer in ranks_after(me, num_ranks)))
        )
        for me in range(num_ranks)
    )
    return Schedule("eager barrier", num_ranks, programs, (), 2 * num_ranks)


def _everyone(
    name: str,
    num_ranks: int,
    mine: Slice,
    take: Callable[[int, int], Items],
    buffers: tuple[Buffer, ...],
    join: Callable[[int], Items] = lambda _: (),
) -> Schedule:
    """Build a schedule: all ranks publish ``mine`` and read from all others, then run ``join``."""
    programs = []
    for me in range(num_ranks):
        others = ranks_after(me, num_ranks)
        items: Items = (Copy(mine, own("scratch", 0, mine.nbytes)), *_ready(me, num_ranks))
        items += take(me, me)
        for peer in others:
            items += (_there(peer), *take(me, peer))
        items += (*join(me), *(_done(me, peer) for peer in others), *_released(others))
        programs.append(_program(me, items))
    return _schedule(name, tuple(programs), buffers, mine.nbytes)


def _from_root(
    name: str,
    num_ranks: int,
    root: int,
    given: tuple[Slice, Items],
    taken: Callable[[int], Items],
    buffers: tuple[Buffer, ...],
) -> Schedule:
    """Build a schedule: the root publishes a slice and does its own work; others read it."""
    whole, local = given
    others = ranks_after(root, num_ranks)
    laid = (Copy(whole, own("scratch", 0, whole.nbytes)), *_ready(root, num_ranks), *local)
    at_root = _program(root, (*laid, *_released(others)))
    programs = [_program(me, (_there(root), *taken(me), _done(me, root))) for me in others]
    return _schedule(name, (at_root, *programs), buffers, whole.nbytes)


def _to_root(
    name: str,
    num_ranks: int,
    root: int,
    sizes: tuple[int, ...],
    take: Callable[[int], Items],
    buffers: tuple[Buffer, ...],
    after: Items = (),
) -> Schedule:
    """Build a schedule: the others publish; the root reads each input, then runs ``after``."""
    others = ranks_after(root, num_ranks)
    items = take(root)
    for peer in others:
        items += (_there(peer), *take(peer))
    items += (*after, *(_done(root, peer) for peer in others))
    programs = [_program(root, items)]
    for me in others:
        laid = Copy(own("in", 0, sizes[me]), own("scratch", 0, sizes[me]))
        programs.append(_program(me, (laid, signal(root, 2 * me), *_released((root,)))))
    return _schedule(name, tuple(programs), buffers, max(sizes))


def _schedule(
    name: str, programs: tuple[Program, ...], buffers: tuple[Buffer, ...], scratch: Value
) -> Schedule:
    assert isinstance(scratch, int)  # no builder here has sizes that depend on the rank
    num_ranks = len(programs)
    laid = Buffer("scratch", scratch)
    return Schedule(f"eager {name}", num_ranks, programs, (*buffers, laid), 2 * num_ranks)


def _program(rank: int, items: Items) -> Program:
    return Program((rank,), (launched(items),))


def _ready(me: int, num_ranks: int) -> Items:
    """Return signals to every other rank that my data is published."""
    return tuple(signal(peer, 2 * me) for peer in ranks_after(me, num_ranks))


def _there(rank: int) -> Wait:
    """Return a wait for the data of ``rank``."""
    return wait(2 * rank)


def _done(me: int, peer: int) -> Signal:
    """Return a signal to ``peer`` that I have read its data."""
    return signal(peer, 2 * me + 1)


def _released(by: tuple[int, ...]) -> Items:
    """Return waits until these ranks have read my data."""
    return tuple(wait(2 * rank + 1) for rank in by)


def _laid(me: int, rank: int, nbytes: int, buffer: str = "in") -> Slice:
    """Return the published data of a rank: my own from its buffer, that of others from scratch."""
    return Slice(rank, buffer if rank == me else "scratch", 0, nbytes)


def _nothing(me: int, peer: int) -> Items:  # noqa: ARG001 - of the kind of a ``take``
    return ()
