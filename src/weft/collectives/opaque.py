"""A library's collective: ranks synchronize, then an opaque kernel runs for its measured duration.

Its internals are unknown, so its links and memory are not shared with what runs concurrently; its
compute units are held.
"""

from weft.collectives.parts import in_out, in_place, launched, schedule_of, to_all, wait
from weft.schedule import Buffer, Cost, Group, Kernel, Schedule

_MET = 0


def opaque(name: str, kind: str, num_ranks: int, nbytes: int, *, seconds: float) -> Schedule:
    """Build a collective whose kernel takes ``seconds`` once every rank has arrived."""
    kernel = Kernel(f"{name} {kind}", Cost("library", (num_ranks, nbytes), seconds=seconds))
    lane = (to_all(Group(num_ranks), _MET), wait(_MET, num_ranks - 1), kernel)
    buffers = _buffers(kind, num_ranks, nbytes)
    return schedule_of(f"{name} {kind}", num_ranks, [launched(lane)], buffers, 1)


def _buffers(kind: str, num_ranks: int, nbytes: int) -> tuple[Buffer, ...]:
    """Return the caller's buffers; sizes count as in nccl-tests."""
    if kind == "all_gather":
        return in_out(-(-nbytes // num_ranks), nbytes)
    if kind == "reduce_scatter":
        return in_out(nbytes, -(-nbytes // num_ranks))
    if kind == "all_to_all":
        return in_out(nbytes, nbytes)
    return (in_place(nbytes),)
