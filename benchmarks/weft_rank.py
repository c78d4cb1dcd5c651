"""A rank of weft without torch: prepared schedules in the heap, and a World's own methods."""

import os
import sys
from functools import partial
from typing import Any

from benchmarks.collective_case import (
    CollectiveCase,
    Floats,
    RankCall,
    arrays_of,
    collective_case_of,
)
from weft._core import die_with
from weft.local_runs.rank_server import serve
from weft.runtime import RawMemory, World, bind_persistent, prepare_collective, world
from weft.runtime.bound_memory import Bindable

PATHS = ("direct", "ordinary")


class WeftRank:
    """One process of a world."""

    about = "weft"

    def __init__(self, here: World) -> None:
        self._world = here
        self.rank = here.rank

    def barrier(self) -> None:
        """Wait for the other ranks."""
        self._world.barrier()

    def open(self, case: dict[str, Any]) -> RankCall:
        """Take the path that the case names."""
        exchange = collective_case_of(case, self._world.num_ranks)
        return (_direct if case["path"] == "direct" else _ordinary)(self._world, exchange)


def memory_of(array: Floats, exchange: CollectiveCase) -> Bindable:
    """Return the memory of an array whose dtype numpy may lack."""
    if exchange.dtype == "float32":
        return array
    return RawMemory(array.ctypes.data, array.nbytes, exchange.dtype)


def _ordinary(here: World, exchange: CollectiveCase) -> RankCall:
    """Call a method of the world with memory that only this process has."""
    x, out = arrays_of(exchange, here.rank)
    method = getattr(here, exchange.kind)
    given, taken = memory_of(x, exchange), memory_of(out, exchange)
    act = partial(method, *((taken, given) if exchange.room else (given,)))
    return RankCall(exchange, here.rank, x, out, act)


def _direct(here: World, exchange: CollectiveCase) -> RankCall:
    """Prepare the schedule on memory of the heap; what is left is one call."""
    item = exchange.given(0).dtype
    x = here.empty(exchange.given_count, item)
    out = here.empty(exchange.room, item) if exchange.room else x[:0]
    prepared = prepare_collective(here, exchange.kind, exchange.nbytes, dtype=exchange.dtype)
    act = bind_persistent(prepared, {"in": x, "out": out} if exchange.room else {"data": x})

    def free() -> None:
        prepared.close()
        here.free(x)
        if exchange.room:
            here.free(out)

    return RankCall(exchange, here.rank, x, out, act, free)


if __name__ == "__main__" and die_with(os.getppid()):
    with world() as _here:
        serve(sys.argv[1], WeftRank(_here))
