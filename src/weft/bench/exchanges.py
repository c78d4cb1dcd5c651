"""Collectives as a benchmark needs them: inputs, what must come out, who carries them out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.collectives import collective
from weft.runtime import World, prepare

Floats = NDArray[np.float32]
KINDS = ("broadcast", "all_gather", "reduce_scatter", "all_reduce", "all_to_all")
PATHS = ("direct", "ordinary")
_IN_PLACE = ("broadcast", "all_reduce")


@dataclass(frozen=True)
class Exchange:
    """One collective of ``nbytes``, counted as nccl-tests does, with small whole numbers."""

    kind: str
    nbytes: int
    num_ranks: int

    def given(self, rank: int) -> Floats:
        """Give a rank's input."""
        count = self.nbytes // 4 // (self.num_ranks if self.kind == "all_gather" else 1)
        return ((np.arange(count) + 7 * rank) % 31).astype(np.float32)

    def room(self) -> int:
        """Count the elements of the output; none where the input is overwritten."""
        if self.kind in _IN_PLACE:
            return 0
        return self.nbytes // 4 // (self.num_ranks if self.kind == "reduce_scatter" else 1)

    def wanted(self, rank: int) -> Floats:
        """Give what a rank must have afterwards."""
        everyone = [self.given(r) for r in range(self.num_ranks)]
        match self.kind:
            case "broadcast":
                return everyone[0]
            case "all_gather":
                return np.concatenate(everyone)
            case "all_to_all":
                return np.concatenate([np.split(x, self.num_ranks)[rank] for x in everyone])
            case _:
                total: Floats = np.sum(everyone, axis=0, dtype=np.float32)
                whole = self.kind == "all_reduce"
                return total if whole else np.split(total, self.num_ranks)[rank]


@dataclass(frozen=True)
class Carrier:
    """One who carries an exchange out: his memory and the call that does it."""

    x: Floats
    out: Floats
    act: Callable[[], Any]

    def wrong(self, exchange: Exchange, rank: int) -> int:
        """Carry it out once more and count the elements that are wrong."""
        self.x[:] = exchange.given(rank)
        self.act()
        have = self.out if exchange.room() else self.x
        return int((have != exchange.wanted(rank)).sum())


def carried_by_weft(world: World, exchange: Exchange, path: str) -> Carrier:
    """Let weft do it: prepared in the heap, or with ordinary arrays by a method of the world."""
    x, room = exchange.given(world.rank), exchange.room()
    if path == "ordinary":
        out = np.empty(room, np.float32)
        method = getattr(world, exchange.kind)
        arguments = (out, x) if room else (x,)
        return Carrier(x, out, lambda: method(*arguments))
    here, out = world.empty(len(x)), world.empty(room)
    here[:] = x
    options: dict[str, Any] = {"dtype": "float32"} if "reduce" in exchange.kind else {}
    schedule = collective(
        exchange.kind, "pull", num_ranks=world.num_ranks, nbytes=exchange.nbytes, **options
    )
    prepared = prepare(schedule, world, bound=True)
    binds = prepared.binds({"in": here, "out": out} if room else {"data": here})
    return Carrier(here, out, lambda: prepared.execute(binds, ""))
