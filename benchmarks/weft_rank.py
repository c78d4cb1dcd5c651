"""A rank of weft without torch: prepared schedules in the heap, and a World's own methods."""

import os
import sys
from functools import partial
from typing import Any

from benchmarks.exchange import Carrier, Exchange, arrays_of, exchange_of
from weft._core import die_with
from weft.local_runs.rank_server import serve
from weft.runtime import World, bind_persistent, prepare_collective, world

PATHS = ("direct", "ordinary")


class WeftRank:
    """One process of a world."""

    about = "weft"

    def __init__(self, here: World) -> None:
        self._world = here
        self.rank = here.rank

    def barrier(self) -> None:
        """Meet the others."""
        self._world.barrier()

    def open(self, case: dict[str, Any]) -> Carrier:
        """Take the path that the case names."""
        exchange = exchange_of(case, self._world.num_ranks)
        return (_direct if case["path"] == "direct" else _ordinary)(self._world, exchange)


def _ordinary(here: World, exchange: Exchange) -> Carrier:
    """Call a method of the world with memory that only this process has."""
    x, out = arrays_of(exchange, here.rank)
    method = getattr(here, exchange.kind)
    act = partial(method, *((out, x) if exchange.room else (x,)))
    return Carrier(exchange, here.rank, x, out, act)


def _direct(here: World, exchange: Exchange) -> Carrier:
    """Prepare the schedule on memory of the heap; what is left is one call."""
    x = here.empty(exchange.given_count)
    out = here.empty(exchange.room) if exchange.room else x[:0]
    prepared = prepare_collective(here, exchange.kind, exchange.nbytes)
    act = bind_persistent(prepared, {"in": x, "out": out} if exchange.room else {"data": x})

    def free() -> None:
        prepared.close()
        here.free(x)
        if exchange.room:
            here.free(out)

    return Carrier(exchange, here.rank, x, out, act, free)


if __name__ == "__main__" and die_with(os.getppid()):
    with world() as _here:
        serve(sys.argv[1], WeftRank(_here))
