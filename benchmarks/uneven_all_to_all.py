"""An all-to-all of a table of sizes, the hardest case of the simulator: every flow is another."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from weft.collectives.direct import READY, SENT, exchange
from weft.collectives.parts import launched, own, schedule_of, to_all, wait
from weft.errors import UsageError
from weft.schedule import (
    Buffer,
    Copy,
    Flag,
    Group,
    Index,
    Queue,
    Rel,
    Repeat,
    Signal,
    Slice,
    Term,
    shifted,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.schedule import Schedule


def uneven_all_to_all(sizes: Sequence[Sequence[int]], *, queue: str = "stream0") -> Schedule:
    """Build an all-to-all in which rank i sends ``sizes[i][j]`` bytes to rank j, packed by rank.

    On ``stream0`` there is a lane per peer, all in flight at once; on a nic or copy queue the sends
    of a rank run one after another.
    """
    num_ranks = len(sizes)
    if any(len(row) != num_ranks for row in sizes) or any(s < 0 for row in sizes for s in row):
        raise UsageError(
            f"sizes: expected a {num_ranks} x {num_ranks} table of non-negative byte counts."
        )
    group = Group(num_ranks)
    columns = list(zip(*sizes, strict=True))
    table = tuple(s for row in sizes for s in row)
    send_at = tuple(at for row in sizes for at in accumulate((0, *row[:-1])))
    # Offset of rank i's bytes at rank j: looked up by i (own row) and j (shifted index).
    receive = [list(accumulate((0, *column[:-1]))) for column in columns]
    receive_at = tuple(receive[j][i] for i in range(num_ranks) for j in range(num_ranks))

    def copy_to(index: Index) -> Copy:
        def lookup(values: tuple[int, ...]) -> Rel:
            return Rel(terms=(Term(index, table=values),))

        size, peer = lookup(table), shifted(group, index.shift, *index.advance)
        src = own("in", lookup(send_at), size)
        return Copy(src, Slice(peer, "out", lookup(receive_at), size))

    buffers = (
        Buffer("in", tuple(sum(row) for row in sizes), "in"),
        Buffer("out", tuple(sum(column) for column in columns), "out"),
    )
    each, local = copy_to(Index(group, 1, (1,))), copy_to(Index(group))
    if queue == "stream0":
        queues = [exchange(group, (wait(READY, num_ranks - 1), each), (local,))]
    else:
        done = Signal(Flag(shifted(group, 1, 1), SENT))
        sends = (wait(READY, num_ranks - 1), Repeat(num_ranks - 1, (each, done)))
        first = launched((to_all(group, READY), local, wait(SENT, num_ranks - 1)))
        queues = [first, Queue(queue, sends)]
    return schedule_of("direct all_to_all", num_ranks, queues, buffers, 3)
