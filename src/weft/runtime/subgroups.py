"""Worlds of a subset of the ranks of a world."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TypeVar

from weft.errors import UsageError
from weft.runtime.communicator import Communicator, create_segment

W = TypeVar("W", bound=Communicator)


def join_group(comm: Communicator, ranks: Sequence[int], kind: type[W]) -> W | None:
    """Create a world of ``ranks``: the first creates its segment, the others join it.

    All ranks of the crew meet twice: when the name is known, and when all have come, so that
    no launcher is closed early. Groups that share no rank are made at the same time.
    """
    chosen = sorted(set(ranks))
    outside = [rank for rank in ranks if not 0 <= rank < comm.num_ranks]
    if not chosen or len(chosen) != len(ranks) or outside:
        raise UsageError(
            f"ranks: expected distinct ranks from 0 to {comm.num_ranks - 1} (got {list(ranks)})."
        )
    made = None
    with comm.exclusive("group"), ExitStack() as stack:
        comm.drain()
        name = b""
        if comm.rank == chosen[0]:
            name = stack.enter_context(closing(create_segment(len(chosen)))).name.encode()
        shown = comm.agree("group", name)
        if comm.rank in chosen:
            name = shown[chosen[0]]
            place = chosen.index(comm.rank)
            made = kind(name.decode(), place, timeout=comm.timeout, engines=comm.engines)
        comm.agree("group made")
    return made
