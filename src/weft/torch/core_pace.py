"""How fast a core is at a moment: a small product and a sweep through memory, again and again.

A core of a virtual machine shares execution units, clock and memory with others that nothing
here can see. Its speed moves by a fifth and more within seconds, so a time is worth little without
that of something known beside it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

SWEPT = 48 << 20  # bytes that a rank goes through so that no cache holds anything else
_EDGE = 96  # of the matrices that are multiplied: they stay in the nearest caches
_TIMES = (
    6  # in a row, of which the best counts: the first ones find their data gone from the caches
)
_ENOUGH = 5  # measurements
SLOWER = 1.1  # times the best: beyond, a core was not its own


class Pace(NamedTuple):
    """Seconds of a product and of a sweep: what a core did at a moment."""

    product: float
    sweep: float

    def beside(self, best: Pace) -> float:
        """Say how many times the best the slower of both is."""
        return max(self.product / best.product, self.sweep / best.sweep)


class _Paced(Protocol):
    @property
    def pace(self) -> Pace: ...


Timed = TypeVar("Timed", bound=_Paced)


class Probe:
    """Times what is known on the core that asks."""

    def __init__(self, nbytes: int = SWEPT) -> None:
        self._swept = np.ones(nbytes // 8)
        self._factor = torch.rand(_EDGE, _EDGE)
        self._product = torch.empty(_EDGE, _EDGE)
        self.swept = 0.0
        self.sweep()
        self.product()

    def sweep(self) -> float:
        """Go through memory once, so that nothing else is in the caches."""
        begin = time.perf_counter()
        np.add(self._swept, 1.0, out=self._swept)
        self.swept = time.perf_counter() - begin
        return self.swept

    def product(self) -> float:
        """Multiply small matrices."""
        return min(self._multiplied() for _ in range(_TIMES))

    def _multiplied(self) -> float:
        begin = time.perf_counter()
        torch.mm(self._factor, self._factor, out=self._product)
        return time.perf_counter() - begin


def best_pace(paces: Sequence[Pace]) -> Pace:
    """Give the pace of a core at its best: one of twenty is faster still."""
    return Pace(*(float(np.quantile(values, 0.05)) for values in zip(*paces, strict=True)))


def calm(taken: Sequence[Timed], best: Pace) -> list[Timed]:
    """Keep what was timed while the core was about as fast as at its best, or the calmest."""
    slower = [each.pace.beside(best) for each in taken]
    most = still_calm(slower)
    return [each for each, times in zip(taken, slower, strict=True) if times <= most]


def still_calm(slower: Sequence[float]) -> float:
    """Say how many times its best a core may have taken: a little.

    Where few were so calm, what the calmest tenth did: five of them, but no more than half.
    """
    enough = min((len(slower) + 1) // 2, max(_ENOUGH, len(slower) // 10))
    return max(SLOWER, sorted(slower)[enough - 1])
