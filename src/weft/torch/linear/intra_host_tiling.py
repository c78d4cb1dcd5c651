"""Tiles inside a host: computed directly in the memory of the receiving rank."""

from collections.abc import Callable, Mapping
from itertools import product

import torch
from torch import Tensor

from weft.fused.tiles import (
    KEEP,
    MAKE,
    SHOW,
    TAKE,
    USE,
    Tiles,
    after,
    gathered_tiles,
    reduced_tiles,
    scattered_tiles,
)
from weft.runtime import PreparedSchedule, World, prepare
from weft.runtime.kernel_calls import Bytes, Op
from weft.schedule import Schedule
from weft.torch.linear.tiling import Keep, Make, ScatterCallbacks, Take, Use

_KEPT = 16  # shapes whose slots are kept

Builder = Callable[[Tiles, str], Schedule]


class IntraHostTiling:
    """Moves tiles by a schedule over the heap of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._prepared: dict[tuple[str, Tiles], PreparedSchedule] = {}

    def scatter(self, tiles: Tiles, callbacks: ScatterCallbacks, call: str) -> None:
        """Compute tiles for all ranks, the own ones last; receive those of the others."""
        others, numbers = self._others, range(tiles.slices)
        to, kept, taken = iter(product(others, numbers)), iter(numbers), iter(numbers)

        def take(here: list[Bytes], _: list[Bytes]) -> None:
            callbacks.take(next(taken), dict(zip(others, map(_tensor, here), strict=True)))

        ops: dict[str, Op] = {
            MAKE: lambda _, there: callbacks.make(*next(to), _tensor(there[0])),
            KEEP: lambda *_: callbacks.keep(next(kept)),
            TAKE: take,
        }
        self._run(scattered_tiles, tiles, ops, call)

    def gather(self, tiles: Tiles, mine: Tensor, callbacks: tuple[Keep, Use], call: str) -> None:
        """Publish the tiles of ``mine``; keep them, then use those of the other ranks."""
        keep, use = callbacks
        numbers = range(tiles.slices)
        shown, kept = iter(tiles.of(mine)), iter(numbers)
        used = iter(product(self._others, numbers))
        ops: dict[str, Op] = {
            SHOW: lambda _, there: _tensor(there[0]).copy_(next(shown)),
            KEEP: lambda *_: keep(next(kept)),
            USE: lambda here, _: use(*next(used), _tensor(here[0])),
        }
        self._run(gathered_tiles, tiles, ops, call)

    def reduce(self, tiles: Tiles, callbacks: tuple[Make, Take], call: str) -> None:
        """Compute one set of tiles; receive those of all ranks."""
        make, take = callbacks
        made, taken = iter(range(tiles.slices)), iter(range(tiles.slices))
        ops: dict[str, Op] = {
            MAKE: lambda _, there: make(next(made), _tensor(there[0])),
            TAKE: lambda here, _: take(next(taken), dict(enumerate(map(_tensor, here)))),
        }
        self._run(reduced_tiles, tiles, ops, call)

    @property
    def _others(self) -> list[int]:
        return after(self._world.rank, self._world.num_ranks)

    def _run(self, builder: Builder, tiles: Tiles, ops: Mapping[str, Op], call: str) -> None:
        """Run the prepared schedule of a tile shape; prepare it on all ranks if there is none."""
        key = builder.__name__, tiles
        found = self._prepared.pop(key, None)
        if found is None:
            found = prepare(builder(tiles, call), self._world)
            if len(self._prepared) >= _KEPT:
                self._prepared.pop(next(iter(self._prepared))).close()
        self._prepared[key] = found  # keeps the most recently used last
        found.run(ops, call=call)


def _tensor(array: Bytes) -> Tensor:
    return torch.from_numpy(array)
