"""Broadcasts along a chain of ranks: pipelined in pieces, and scatter followed by all-gather."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.collectives.parts import (
    Chunks,
    default_piece,
    in_pieces,
    in_place,
    launched,
    own,
    signal,
    wait,
    wait_next,
)
from weft.schedule import (
    SELF,
    Copy,
    Group,
    Index,
    Program,
    Repeat,
    Schedule,
    Slice,
    shifted,
)

if TYPE_CHECKING:
    from weft.collectives.parts import Items
    from weft.schedule.values import Value

READY, SENT, READY_ROOT, GATHERED = 0, 1, 2, 3


def broadcast(num_ranks: int, nbytes: int, *, root: int = 0, piece: int | None = None) -> Schedule:
    """Build a pipelined chain: each rank forwards piece k to the next while piece k+1 arrives.

    K pieces of C bytes take (n - 2 + K) C / rate, plus one latency per hop: a piece is sent as soon
    as the previous one has left, without waiting for its arrival.
    """
    piece = piece or default_piece(nbytes)
    group = Group(num_ranks)
    after = shifted(group, 1)
    hello = signal(shifted(group, -1), READY)

    def send(offset: Value, size: int, number: Value) -> Items:
        del number
        copy = Copy(own("data", offset, size), Slice(after, "data", offset, size))
        return (copy, signal(after, SENT))

    def forward(offset: Value, size: int, number: Value) -> Items:
        return (wait(SENT, number), *send(offset, size, number))

    sends, count = in_pieces(nbytes, piece, send)
    forwards, _ = in_pieces(nbytes, piece, forward)
    line = [(root + place) % num_ranks for place in range(num_ranks)]
    parts = (
        (line[:1], (wait(READY), *sends)),
        (line[1:-1], (hello, wait(READY), *forwards)),
        (line[-1:], (hello, wait(SENT, count))),
    )
    return _line("chain broadcast", num_ranks, parts, nbytes)


def scatter_all_gather(num_ranks: int, nbytes: int, *, root: int = 0) -> Schedule:
    """Build a scatter from the root and a ring all-gather; nothing is sent back to the root."""
    chunks = Chunks(Group(num_ranks), nbytes)
    group = chunks.group
    after, before = shifted(group, 1), shifted(group, -1)

    def pass_on(first: int) -> Copy:
        index = Index(group, -first, (-1,))
        return Copy(chunks.slice(SELF, "data", index), chunks.slice(after, "data", index))

    theirs, peer = Index(group, 1, (1,)), shifted(group, 1, 1)
    share = Copy(chunks.slice(SELF, "data", theirs), chunks.slice(peer, "data", theirs))
    scatter = (
        wait(READY_ROOT, num_ranks - 1),
        Repeat(num_ranks - 1, (share, signal(peer, SENT))),
    )
    ring = (wait(READY), Repeat(num_ranks - 1, (pass_on(0), signal(after, GATHERED))))
    hello = (signal(root, READY_ROOT), signal(before, READY))
    middle = (
        *hello,
        wait(READY),
        wait(SENT),
        Repeat(1, (pass_on(0), signal(after, GATHERED))),
        Repeat(num_ranks - 2, (wait_next(GATHERED), pass_on(1), signal(after, GATHERED))),
        wait(GATHERED, num_ranks - 1),
    )
    last = (*hello, wait(SENT), wait(GATHERED, num_ranks - 1))
    line = [(root + place) % num_ranks for place in range(num_ranks)]
    queues = ((line[:1], (scatter, ring)), (line[1:-1], (middle,)), (line[-1:], (last,)))
    programs = tuple(Program(tuple(ranks), (launched(*lanes),)) for ranks, lanes in queues if ranks)
    name = "scatter-allgather broadcast"
    return Schedule(name, num_ranks, programs, (in_place(nbytes),), 4)


def _line(
    name: str, num_ranks: int, parts: tuple[tuple[list[int], Items], ...], nbytes: int
) -> Schedule:
    programs = tuple(Program(tuple(ranks), (launched(lane),)) for ranks, lane in parts if ranks)
    return Schedule(name, num_ranks, programs, (in_place(nbytes),), 2)
