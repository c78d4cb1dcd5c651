"""Push algorithms: a rank writes what others need directly into their memory.

For shared memory and data that no cache holds: data with several receivers is read once and written
to all of them piece by piece, so memory traffic is a third to a half lower than if every receiver
read it.
"""

from __future__ import annotations

from weft.collectives.parts import divided, in_out, own
from weft.collectives.pull import together
from weft.schedule import Broadcast, Group, Program, Schedule, Slice


def all_gather(num_ranks: int, nbytes: int) -> Schedule:
    """Build an all-gather in which every rank writes its part into all outputs."""
    chunk = divided(nbytes, num_ranks, "all_gather")
    programs = []
    for rank in range(num_ranks):
        rooms = tuple(Slice(r, "out", rank * chunk, chunk) for r in range(num_ranks))
        work = (Broadcast(own("in", 0, chunk), rooms),)
        programs.append(Program((rank,), (together(Group(num_ranks), work),)))
    return Schedule("push all_gather", num_ranks, tuple(programs), in_out(chunk, nbytes), 2)
