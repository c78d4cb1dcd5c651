"""Broadcasts along a chain of ranks: pipelined in pieces, and scatter followed by all-gather.

``piece_bytes`` is the piece size of a pipeline along a chain of hosts.
"""

from math import sqrt

from weft.collectives.parts import (
    Chunks,
    Items,
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
    line = [(root + index) % num_ranks for index in range(num_ranks)]
    parts = (
        (line[:1], (wait(READY), *sends)),
        (line[1:-1], (hello, wait(READY), *forwards)),
        (line[-1:], (hello, wait(SENT, count))),
    )
    programs = tuple(Program(tuple(ranks), (launched(lane),)) for ranks, lane in parts if ranks)
    return Schedule("chain broadcast", num_ranks, programs, (in_place(nbytes),), 2)


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


# The fastest sizes measured at 1 Gbit/s, through Gloo between processes of a 2-core machine. A
# piece takes about a millisecond on the wire, long compared with the wake-ups it costs.
PIECES_OF, PIECES_AT = 16 << 20, 1e9 / 8
PIECE, ENCODED_PIECE = 128 << 10, 256 << 10
LEAST_PIECE, MOST_PIECE, MOST_TINY = 64 << 10, 2 << 20, 32 << 20
WHOLE = 4096  # a multiple of every codec's block
TINY = 32  # ratio from which the wire time is negligible and pieces only add cost


def piece_bytes(nbytes: int, ratio: float | None = None) -> int:
    """Return the piece size before encoding, for a pipeline along a chain of hosts.

    K pieces of C bytes pass n hosts in (n - 2 + K)(t + C / rate). The best C grows with the square
    root of the size, of the ratio, and of the cost per piece ``t``, which is larger with encoding
    (a ratio is given). At least four pieces keep the hosts busy. Data that nearly vanishes when
    encoded is sent in two pieces: the second is encoded while the first is decoded.
    """
    if ratio is not None and ratio >= TINY:
        return min(max(-(-nbytes // (2 * WHOLE)) * WHOLE, LEAST_PIECE), MOST_TINY)
    usual = PIECE if ratio is None else ENCODED_PIECE * sqrt(ratio)
    best = min(usual * sqrt(nbytes / PIECES_OF), nbytes / 4)
    return round(min(max(best, LEAST_PIECE), MOST_PIECE) / WHOLE) * WHOLE
