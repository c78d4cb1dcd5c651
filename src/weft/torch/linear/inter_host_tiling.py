"""Tiles between hosts: each is sent while the next one is computed."""

from collections.abc import Iterator, Mapping
from itertools import product

import torch
from torch import Tensor

from weft.fused.tiles import Tiles, after
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import InterHostSession, wait_for
from weft.torch.hosts.multi_host_channel import MultiHostChannel
from weft.torch.linear.tiling import Keep, Make, ScatterCallbacks, Take, Use

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
        others, numbers = after(self._rank, tiles.num_ranks), range(tiles.slices)
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
        others, numbers = after(self._rank, tiles.num_ranks), range(tiles.slices)
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
        others, numbers = after(self._rank, tiles.num_ranks), range(tiles.slices)
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
