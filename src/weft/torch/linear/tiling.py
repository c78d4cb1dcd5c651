"""Tiles between the ranks of a group: what is made, kept, taken and used, and by whom."""

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
    """What a rank does while tiles are scattered.

    ``lines`` counts those that a rank really has for another, in tiles that are cut for more.
    """

    make: MakeFor
    keep: Keep
    take: Take
    lines: Callable[[int, int], int] | None = None


class Tiling(Protocol):
    """Ways of tiles from rank to rank. All ranks call alike; ``call`` says what they do.

    Tiles are flat bytes. What ``take`` and ``use`` are given is theirs until they return.
    """

    def scatter(self, tiles: Tiles, callbacks: ScatterCallbacks, call: str) -> None:
        """Make tiles for all ranks, the own ones last; take those of the others."""

    def gather(self, tiles: Tiles, mine: Tensor, callbacks: tuple[Keep, Use], call: str) -> None:
        """Show all ranks the tiles of ``mine``; keep them, then use those of the others."""

    def reduce(self, tiles: Tiles, callbacks: tuple[Make, Take], call: str) -> None:
        """Make one set of tiles; take those of all ranks."""
