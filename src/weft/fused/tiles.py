"""Tiles of a matrix product that are sent while the next ones are computed, on CPU ranks.

A rank's product is divided into tiles. Each is computed where it is needed, in a slot of its
receiver or where the others read it, and a flag signals its completion; then the next one is
computed. Data that only one process accesses (operands, its result) is in no schedule buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from weft.collectives.parts import own, ranks_after, to_all, wait
from weft.errors import UsageError
from weft.fused.table_sharding import spread
from weft.schedule import (
    Buffer,
    Cost,
    Flag,
    Group,
    Kernel,
    Program,
    Queue,
    Repeat,
    Schedule,
    Signal,
    Slice,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from weft.schedule import Command

    Commands = list[Command | Repeat]

MAKE, KEEP, TAKE, SHOW, USE = "tile_make", "tile_keep", "tile_take", "tile_show", "tile_use"
READY, DONE, SENT = 0, 1, 2  # flags; one per tile from SENT on


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of one rank for one rank: ``extent`` lines of ``line`` bytes, cut into ``slices``.

    ``flops`` (per line) and ``dtype`` only affect prices.
    """

    num_ranks: int
    extent: int
    line: int
    slices: int
    flops: float = 0.0
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or self.slices < 1 or self.extent < 0 or self.line < 0:
            raise UsageError(
                f"tiles: cannot cut {self.extent} lines of {self.line} bytes for each of "
                f"{self.num_ranks} ranks into {self.slices} tiles.",
                "Use at least one rank and one tile.",
            )

    @property
    def nbytes(self) -> int:
        """The size of all tiles for one rank in bytes."""
        return self.extent * self.line

    @property
    def largest(self) -> int:
        """The number of lines of the largest tile."""
        first, last = self.cut[0]
        return last - first

    @property
    def cut(self) -> list[tuple[int, int]]:
        """The half-open range of lines of each tile."""
        return _cut(self.extent, self.slices)

    def clipped(self, number: int, lines: int) -> tuple[int, int]:
        """Return the lines of a tile, clipped to ``lines``."""
        first, last = self.cut[number]
        return min(first, lines), min(last, lines)

    def cost(self, number: int) -> Cost:
        """Return the cost of one tile."""
        first, last = self.cut[number]
        lines = last - first
        return Cost(dtype=self.dtype, flops=self.flops * lines, nbytes=lines * self.line)

    def of(self, whole: Any) -> list[Any]:
        """Divide an object that has the bytes of all tiles."""
        return [whole[first * self.line : last * self.line] for first, last in self.cut]

    def at(self, number: int, start: int = 0) -> tuple[int, int]:
        """Return offset and size of a tile among the tiles that begin at ``start``."""
        first, last = self.cut[number]
        return start + first * self.line, (last - first) * self.line


@cache
def _cut(extent: int, slices: int) -> list[tuple[int, int]]:
    return spread(extent, slices)


def scattered_tiles(tiles: Tiles, name: str) -> Schedule:
    """Build a schedule: every rank computes tiles for all others in their slots, and then its own.

    Summing the slots makes this a product with a reduce-scatter, copying their rows a product with
    an all-to-all.
    """
    others = tiles.num_ranks - 1
    slots = Buffer("slots", others * tiles.nbytes)

    def commands(me: int) -> Commands:
        found: Commands = []
        if others:
            found += [to_all(Group(tiles.num_ranks), READY), wait(READY, others)]
        for peer in ranks_after(me, tiles.num_ranks):
            for number in range(tiles.slices):
                there = _slot(tiles, me, peer, number)
                found.append(Kernel(MAKE, tiles.cost(number), (), (there,)))
                found.append(Signal(Flag(peer, SENT + number)))
        found += [Kernel(KEEP, tiles.cost(number)) for number in range(tiles.slices)]
        for number in range(tiles.slices):
            found += [wait(SENT + number, others)] if others else []
            slices = (_slot(tiles, peer, me, number) for peer in ranks_after(me, tiles.num_ranks))
            found.append(Kernel(TAKE, _passing(tiles, number, others), tuple(slices)))
        return found

    return _schedule(tiles, name, commands, slots, SENT + tiles.slices)


def gathered_tiles(tiles: Tiles, name: str) -> Schedule:
    """Build a schedule: every rank publishes tiles, uses its own, then others as they arrive."""
    n = tiles.num_ranks

    def commands(me: int) -> Commands:
        found: Commands = []
        for number in range(tiles.slices):
            shown = own("shown", *tiles.at(number))
            found.append(Kernel(SHOW, _passing(tiles, number, 1), (), (shown,)))
            flag = SENT + me * tiles.slices + number
            found += [Signal(Flag(peer, flag)) for peer in ranks_after(me, n)]
        found += [Kernel(KEEP, tiles.cost(number)) for number in range(tiles.slices)]
        for peer in ranks_after(me, n):
            for number in range(tiles.slices):
                found.append(wait(SENT + peer * tiles.slices + number))
                there = Slice(peer, "shown", *tiles.at(number))
                found.append(Kernel(USE, tiles.cost(number), (there,)))
        return [*found, *_left(n)]

    shown = Buffer("shown", tiles.nbytes)
    return _schedule(tiles, name, commands, shown, SENT + n * tiles.slices)


def reduced_tiles(tiles: Tiles, name: str) -> Schedule:
    """Build a product with an all-reduce: every rank computes its summands and reads those of all.

    Every rank adds everything up in one step, because the results of such products are small.
    """
    n = tiles.num_ranks

    def commands(me: int) -> Commands:
        found: Commands = []
        for number in range(tiles.slices):
            made = own("made", *tiles.at(number))
            found.append(Kernel(MAKE, tiles.cost(number), (), (made,)))
            found += [Signal(Flag(peer, SENT + number)) for peer in ranks_after(me, n)]
        for number in range(tiles.slices):
            found += [wait(SENT + number, n - 1)] if n > 1 else []
            slices = (Slice(rank, "made", *tiles.at(number)) for rank in range(n))
            found.append(Kernel(TAKE, _passing(tiles, number, n), tuple(slices)))
        return [*found, *_left(n)]

    return _schedule(tiles, name, commands, Buffer("made", tiles.nbytes), SENT + tiles.slices)


def _schedule(
    tiles: Tiles, name: str, commands: Callable[[int], Commands], buffer: Buffer, num_flags: int
) -> Schedule:
    queues = (Queue("stream0", tuple(commands(me))) for me in range(tiles.num_ranks))
    programs = tuple(Program((me,), (queue,)) for me, queue in enumerate(queues))
    return Schedule(name, tiles.num_ranks, programs, (buffer,), num_flags)


def _slot(tiles: Tiles, sender: int, taker: int, number: int) -> Slice:
    place = (sender - taker - 1) % tiles.num_ranks
    return Slice(taker, "slots", *tiles.at(number, place * tiles.nbytes))


def _passing(tiles: Tiles, number: int, count: int) -> Cost:
    """Return the cost of reading ``count`` tiles once."""
    return Cost(nbytes=count * tiles.cost(number).nbytes)


def _left(num_ranks: int) -> Commands:
    """Return commands that leave once no rank reads here any more."""
    if num_ranks == 1:
        return []
    return [to_all(Group(num_ranks), DONE), wait(DONE, num_ranks - 1)]
