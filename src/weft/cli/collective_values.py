"""The inputs and expected outputs of every rank of a collective, computed by numpy."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.collectives.catalogue import REDUCING
from weft.schedule import Schedule

Array = NDArray[Any]


def dtype_for(kind: str, nbytes: int, num_ranks: int) -> str:
    """Return float32 for reductions whose size holds whole floats per rank, otherwise uint8."""
    share = num_ranks if kind == "reduce_scatter" else 1
    return "float32" if kind in REDUCING and nbytes % (4 * share) == 0 else "uint8"


@dataclass(frozen=True, slots=True)
class Values:
    """The contents of a collective's buffers, the same on every rank.

    The numbers are small integers, so that float sums are exact in any order.
    """

    kind: str
    num_ranks: int
    nbytes: int
    dtype: str = "uint8"

    def give(self, rank: int) -> Array:
        """Return the contribution of a rank, in elements."""
        count = self.nbytes // np.dtype(self.dtype).itemsize
        drawn = np.random.default_rng(rank).integers(0, 64, count)
        return drawn.astype(self.dtype)[self._part(rank)]

    def _part(self, rank: int) -> slice:
        """Return the part of the whole that a rank contributes."""
        match self.kind:
            case "all_gather" | "gather":
                return _shares(self.nbytes, self.num_ranks)[rank]
            case "scatter" | "send_recv":
                return slice(None) if rank == 0 else slice(0, 0)
            case _:
                return slice(None)

    def start(self, schedule: Schedule, rank: int) -> dict[str, Array]:
        """Return the initial buffers of a rank by name, in bytes."""
        mine = self.give(rank).view(np.uint8)
        names = {buffer.name: buffer for buffer in schedule.buffers}
        if "in" in names:
            return {"in": mine}
        if "data" not in names:
            return {}
        data = np.zeros(names["data"].size_on(rank), np.uint8)
        place = _shares(self.nbytes, self.num_ranks)[rank]
        data[place if self.kind == "all_gather" else slice(None)] = mine
        return {"data": data}

    def want(self, rank: int) -> Array:
        """Return the expected output of a rank, in bytes."""
        return np.ascontiguousarray(self._want(rank)).view(np.uint8)

    def _want(self, rank: int) -> Array:  # noqa: PLR0911 - one case a collective
        place = _shares(self.nbytes, self.num_ranks)[rank]
        everyone = range(self.num_ranks)
        match self.kind:
            case "broadcast":
                return self.give(0)
            case "all_gather":
                return np.concatenate([self.give(r) for r in everyone])
            case "gather":
                whole = np.concatenate([self.give(r) for r in everyone])
                return whole if rank == 0 else whole[:0]
            case "scatter":
                return self.give(0)[place]
            case "all_to_all":
                return np.concatenate([self.give(r)[place] for r in everyone])
            case "send_recv":
                return self.give(0) if rank == self.num_ranks - 1 else self.give(0)[:0]
            case "all_reduce":
                return self._sum()
            case "reduce" if rank == 0:
                return self._sum()
            case "reduce_scatter":
                return self._sum().view(np.uint8)[place]
            case _:
                return np.empty(0, np.uint8)

    def _sum(self) -> Array:
        total = self.give(0)
        for rank in range(1, self.num_ranks):
            total = total + self.give(rank)
        return total


def _shares(nbytes: int, num_ranks: int) -> list[slice]:
    """Divide bytes into one part per rank, the first ones longer if they do not divide evenly."""
    each, rest = divmod(nbytes, num_ranks)
    starts = [rank * each + min(rank, rest) for rank in range(num_ranks + 1)]
    return [slice(start, stop) for start, stop in pairwise(starts)]
