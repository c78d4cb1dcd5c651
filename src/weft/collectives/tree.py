"""Trees: a pipelined binary tree, and the binomial tree."""

from collections.abc import Callable

from weft.collectives.parts import (
    Items,
    default_piece,
    in_pieces,
    in_place,
    launched,
    own,
    signal,
    wait,
)
from weft.schedule import SELF, Buffer, Copy, Program, Queue, Reduce, Schedule, Slice
from weft.schedule.values import Value, plus

READY, DOWN, TOP, UP = 0, 1, 2, 3  # UP and UP + 1: from the first and the second child


# One tree, log2(n) latencies deep. NCCL's double binary tree (Sanders, Speck and Traeff, 2009) adds
# a second one in which the leaves of the first are inner nodes, so that each carries half of the
# data.
class _Node:
    """One rank of a binary tree; ranks count from the root."""

    def __init__(self, rank: int, root: int, num_ranks: int) -> None:
        place = (rank - root) % num_ranks
        children = (c for c in (2 * place + 1, 2 * place + 2) if c < num_ranks)
        self.children = [(c + root) % num_ranks for c in children]
        self.parent = ((place - 1) // 2 + root) % num_ranks if place else None
        self.side = (place - 1) % 2  # which child of its parent this is


def broadcast(num_ranks: int, nbytes: int, *, root: int = 0, piece: int | None = None) -> Schedule:
    """Build a broadcast down a binary tree in pieces: a rank forwards piece k while k+1 arrives."""
    piece = piece or default_piece(nbytes)

    def program(node: _Node) -> Queue:
        lanes = _down(node, nbytes, piece, DOWN)
        hello = () if node.parent is None else (signal(node.parent, UP + node.side),)
        ready = [(wait(UP + side), *lane) for side, lane in enumerate(lanes)]
        if not ready:
            _, count = in_pieces(nbytes, piece, lambda *_: ())
            ready = [(wait(DOWN, count),)]
        return launched((*hello, *ready[0]), *ready[1:])

    return _tree("tree broadcast", num_ranks, root, program, (in_place(nbytes),))


def all_reduce(
    num_ranks: int,
    nbytes: int,
    *,
    dtype: str = "uint8",
    op: str = "sum",
    root: int = 0,
    piece: int | None = None,
) -> Schedule:
    """Build an all-reduce up a binary tree and down again, in pieces, both directions at once."""
    piece = piece or default_piece(nbytes)

    def program(node: _Node) -> Queue:
        up = _up(node, nbytes, piece, dtype, op)
        greet = tuple(signal(child, READY) for child in node.children)
        hold = () if node.parent is None else (wait(READY),)
        down = _down(node, nbytes, piece, TOP if node.parent is None else DOWN)
        if not node.children:
            _, count = in_pieces(nbytes, piece, lambda *_: ())
            down = [(wait(DOWN, count),)]
        return launched((*greet, *hold, *up), *down)

    # A scratch half for each child: what the second child sends must not wait for the first.
    buffers = (in_place(nbytes), Buffer("scratch", 2 * nbytes))
    return _tree("tree all_reduce", num_ranks, root, program, buffers)


def barrier(num_ranks: int, nbytes: int = 0) -> Schedule:
    """Build a barrier up a binary tree and down again, with signals only."""
    del nbytes  # a barrier moves no data; the parameter keeps the signatures of all builders equal

    def program(node: _Node) -> Queue:
        gather = tuple(wait(UP + side) for side in range(len(node.children)))
        up = () if node.parent is None else (signal(node.parent, UP + node.side), wait(DOWN))
        down = tuple(signal(child, DOWN) for child in node.children)
        return launched((*gather, *up, *down))

    return _tree("tree barrier", num_ranks, 0, program, ())


def binomial_broadcast(num_ranks: int, nbytes: int, *, root: int = 0) -> Schedule:
    """Build a broadcast: in step j the 2^j ranks that have the data send it 2^j positions on."""
    steps = (num_ranks - 1).bit_length()
    programs = []
    for index in range(num_ranks):
        first = index.bit_length()  # the first step in which this rank sends
        children = [(j, index + (1 << j)) for j in range(first, steps)]
        receive: Items = ()
        if index:
            parent = (index - (1 << (first - 1)) + root) % num_ranks
            receive = (signal(parent, 1 + first - 1), wait(READY))
        sends = tuple(
            command
            for j, child in children
            if child < num_ranks
            for command in _send(j, (child + root) % num_ranks, nbytes)
        )
        rank = (index + root) % num_ranks
        programs.append(Program((rank,), (launched((*receive, *sends)),)))
    buffers = (in_place(nbytes),)
    return Schedule("binomial broadcast", num_ranks, tuple(programs), buffers, 1 + steps)


def _send(step: int, child: int, nbytes: int) -> Items:
    """Return a send: flag 0 signals arrival, flag 1 + j that child j is ready."""
    copy = Copy(own("data", 0, nbytes), Slice(child, "data", 0, nbytes))
    return (wait(1 + step), copy, signal(child, READY))


def _up(node: _Node, nbytes: int, piece: int, dtype: str, op: str) -> Items:
    """Return commands that reduce what the children send and send it to the parent."""

    def body(offset: Value, size: int, number: Value) -> Items:
        here = own("data", offset, size)
        adds: Items = ()
        for side in range(len(node.children)):
            part = own("scratch", plus(offset, side * nbytes), size)
            adds = (*adds, wait(UP + side, number), Reduce((here, part), here, dtype, op))
        if node.parent is None:
            return (*adds, signal(SELF, TOP))
        there = Slice(node.parent, "scratch", plus(offset, node.side * nbytes), size)
        return (*adds, Copy(here, there), signal(node.parent, UP + node.side))

    return in_pieces(nbytes, piece, body)[0]


def _down(node: _Node, nbytes: int, piece: int, flag: int) -> list[Items]:
    """Return one lane per child that forwards each piece once ``flag`` signals its arrival."""

    def to(child: int) -> Callable[[Value, int, Value], Items]:
        def body(offset: Value, size: int, number: Value) -> Items:
            copy = Copy(own("data", offset, size), Slice(child, "data", offset, size))
            hold = () if node.parent is None and flag == DOWN else (wait(flag, number),)
            return (*hold, copy, signal(child, DOWN))

        return body

    return [in_pieces(nbytes, piece, to(child))[0] for child in node.children]


def _tree(
    name: str,
    num_ranks: int,
    root: int,
    program: Callable[[_Node], Queue],
    buffers: tuple[Buffer, ...],
) -> Schedule:
    programs = tuple(
        Program((rank,), (program(_Node(rank, root, num_ranks)),)) for rank in range(num_ranks)
    )
    return Schedule(name, num_ranks, programs, buffers, UP + 2)
