"""The interface of fused tiles: callbacks that compute, keep, receive and use tiles."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from torch import Tensor

from weft.fused.tiles import Tiles

MakeFor = Callable[[int, int, Tensor], None]  # for a rank, its tile of that number, into there
Make = Callable[[int, Tensor], None]  # the tile of that number, into there
Keep = Callable[[int], None]  # this rank's own tile of that number
Take = Callable[[int, Mapping[int, Tensor]], None]  # the tiles of that number, by rank
Use = Callable[[int, int, Tensor], None]  # of a rank, its tile of that number


class ScatterCallbacks(NamedTuple):
    """The callbacks of a rank while tiles are scattered.

    ``lines`` returns how many lines a rank has for another, in tiles that may hold more.
    """

    make: MakeFor
    keep: Keep
    take: Take
    lines: Callable[[int, int], int] | None = None


class Tiling(Protocol):
    """Moves tiles between ranks. All ranks make the same calls; ``call`` is the name of one.

    Tiles are flat bytes. Those passed to ``take`` and ``use`` are valid until they return.
    """

    def scatter(self, tiles: Tiles, callbacks: ScatterCallbacks, call: str) -> None:
        """Compute tiles for all ranks, the own ones last; receive those of the others."""

    def gather(self, tiles: Tiles, mine: Tensor, callbacks: tuple[Keep, Use], call: str) -> None:
        """Publish the tiles of ``mine``; keep them, then use those of the other ranks."""

    def reduce(self, tiles: Tiles, callbacks: tuple[Make, Take], call: str) -> None:
        """Compute one set of tiles; receive those of all ranks."""
