"""Tiles of fused matmuls, moved inside a host and between hosts by callbacks of a rank.

Inside a host a tile is computed directly in the memory of the receiving rank; between hosts it is
sent while the next one is computed.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from weft.collectives.parts import ranks_after
from weft.fused.tiles import (
    KEEP,
    MAKE,
    SHOW,
    TAKE,
    USE,
    Tiles,
    gathered_tiles,
    reduced_tiles,
    scattered_tiles,
)
from weft.runtime import PreparedSchedule, World, prepare
from weft.runtime.kernel_calls import Bytes, Op
from weft.schedule import Schedule
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import InterHostSession, wait_for
from weft.torch.hosts.multi_host_channel import MultiHostChannel

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
    def _others(self) -> tuple[int, ...]:
        return ranks_after(self._world.rank, self._world.num_ranks)

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


Coming = dict[tuple[int, int], tuple[Tensor, list[Transfer]]]  # by rank and number


class InterHostTiling:
    """Tiles by messages between the ranks of several hosts.

    Rooms for tiles are those of the place, the same in every call: with fresh memory the
    system would spend a good part of a transfer on its pages.
    """

    def __init__(self, channel: MultiHostChannel) -> None:
        self._channel, self._rank = channel, channel.rank

    def scatter(self, tiles: Tiles, callbacks: ScatterCallbacks, call: str) -> None:
        """Compute tiles for all ranks, the own ones last; receive those of the others."""
        self._channel.run_between_hosts(self._scatter, tiles, callbacks, call)

    def gather(self, tiles: Tiles, mine: Tensor, callbacks: tuple[Keep, Use], call: str) -> None:
        """Publish the tiles of ``mine``; keep them, then use those of the other ranks."""
        self._channel.run_between_hosts(self._gather, tiles, mine, callbacks, call)

    def reduce(self, tiles: Tiles, callbacks: tuple[Make, Take], call: str) -> None:
        """Compute one set of tiles; receive those of all ranks."""
        self._channel.run_between_hosts(self._reduce, tiles, callbacks, call)

    def _scatter(
        self, topology: HostTopology, tiles: Tiles, callbacks: ScatterCallbacks, call: str
    ) -> None:
        others, numbers = ranks_after(self._rank, tiles.num_ranks), range(tiles.slices)
        with (
            topology.session(call, tiles.nbytes) as session,
            topology.transport.background_scheduling(),
        ):
            buffers = _buffers(topology, tiles, 2 * len(others) * tiles.slices)
            lines = callbacks.lines or (lambda *_: tiles.extent)
            incoming: Coming = {}
            for peer, number in product(others, numbers):
                buffer = _buffer(tiles, number, lines(self._rank, peer), buffers)
                callbacks.make(peer, number, buffer)
                session.send(buffer, peer)
                # Not before the first tile is gone: to be ready means to wait for the others.
                incoming = incoming or _awaited(
                    session, tiles, {p: lines(p, self._rank) for p in others}, buffers
                )
            for number in numbers:
                callbacks.keep(number)
            for number in numbers:
                callbacks.take(number, {rank: _come(incoming, rank, number) for rank in others})

    def _gather(
        self,
        topology: HostTopology,
        tiles: Tiles,
        mine: Tensor,
        callbacks: tuple[Keep, Use],
        call: str,
    ) -> None:
        keep, use = callbacks
        others, numbers = ranks_after(self._rank, tiles.num_ranks), range(tiles.slices)
        with (
            topology.session(call, tiles.nbytes) as session,
            topology.transport.background_scheduling(),
        ):
            buffers = _buffers(topology, tiles, len(others) * tiles.slices)
            incoming = _awaited(session, tiles, dict.fromkeys(others, tiles.extent), buffers)
            for number, peer in product(numbers, others):
                session.send(tiles.of(mine)[number], peer)
            for number in numbers:
                keep(number)
            for number, peer in product(numbers, others):
                use(peer, number, _come(incoming, peer, number))

    def _reduce(
        self, topology: HostTopology, tiles: Tiles, callbacks: tuple[Make, Take], call: str
    ) -> None:
        make, take = callbacks
        others, numbers = ranks_after(self._rank, tiles.num_ranks), range(tiles.slices)
        with (
            topology.session(call, tiles.nbytes) as session,
            topology.transport.background_scheduling(),
        ):
            buffers = _buffers(topology, tiles, (len(others) + 1) * tiles.slices)
            incoming = _awaited(session, tiles, dict.fromkeys(others, tiles.extent), buffers)
            made = [_buffer(tiles, number, tiles.extent, buffers) for number in numbers]
            for number in numbers:
                make(number, made[number])
                for peer in others:
                    session.send(made[number], peer)
            for number in numbers:
                parts = {rank: _come(incoming, rank, number) for rank in others}
                take(number, {**parts, self._rank: made[number]})


def _buffers(topology: HostTopology, tiles: Tiles, count: int) -> Iterator[Tensor]:
    """Return buffers for so many tiles, each as long as the longest."""
    return iter(torch.from_numpy(topology.slots(count, tiles.largest * tiles.line)))


def _buffer(tiles: Tiles, number: int, lines: int, buffers: Iterator[Tensor]) -> Tensor:
    first, last = tiles.clipped(number, lines)
    return next(buffers)[: (last - first) * tiles.line]


def _awaited(
    session: InterHostSession, tiles: Tiles, lines: Mapping[int, int], buffers: Iterator[Tensor]
) -> Coming:
    """Post receives of the tiles of other ranks, in the order of their sends."""
    incoming: Coming = {}
    for peer, number in product(lines, range(tiles.slices)):
        buffer = _buffer(tiles, number, lines[peer], buffers)
        incoming[peer, number] = buffer, session.recv(buffer, peer)
    return incoming


def _come(incoming: Coming, rank: int, number: int) -> Tensor:
    buffer, transfers = incoming[rank, number]
    wait_for(transfers)
    return buffer
