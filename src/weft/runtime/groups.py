"""Worlds of some ranks of a world."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TypeVar

from weft.errors import UsageError
from weft.runtime.crew import Crew, launch

W = TypeVar("W", bound=Crew)


def join_group(crew: Crew, ranks: Sequence[int], kind: type[W]) -> W | None:
    """Let the first of ``ranks`` launch a world and the others join it.

    All ranks of the crew meet twice: when the name is known, and when all have come, so that
    no launcher is closed early. Groups that share no rank are made at the same time.
    """
    chosen = sorted(set(ranks))
    outside = [rank for rank in ranks if not 0 <= rank < crew.num_ranks]
    if not chosen or len(chosen) != len(ranks) or outside:
        raise UsageError(f"ranks {list(ranks)} are no group of {crew.num_ranks} ranks.")
    made = None
    with crew.alone("group"), ExitStack() as stack:
        crew.drain()
        name = b""
        if crew.rank == chosen[0]:
            name = stack.enter_context(closing(launch(len(chosen)))).name.encode()
        shown = crew.agree("group", name)
        if crew.rank in chosen:
            name = shown[chosen[0]]
            place = chosen.index(crew.rank)
            made = kind(name.decode(), place, timeout=crew.timeout, engines=crew.engines)
        crew.agree("group made")
    return made
