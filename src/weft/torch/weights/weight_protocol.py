"""What sender and receivers of an update do together.

    1. every rank states which version it holds
    2. the sender sends what changed since the last one, unless no receiver holds it
    3. every receiver states whether it needs all values: it missed an update, or holds other bytes
    4. if one does, the sender sends all values; the others pass them on and ignore them

Pieces travel along a chain of hosts and are shared in memory inside each (``PieceChain``).
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch

from weft.compress.frame import Octets
from weft.errors import CodecError, DisagreeError
from weft.torch.backend.channel import Channel
from weft.torch.hosts import inter_host_collectives
from weft.torch.hosts.host_map import HostMap
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import InterHostSession
from weft.torch.hosts.intra_host import IntraHost
from weft.torch.hosts.multi_host_channel import MultiHostChannel
from weft.torch.hosts.piece_chain import PieceChain
from weft.torch.weights.weight_layout import Segment, WeightLayout

_AHEAD = 8  # pieces that a host can receive before it forwards one: 32 MiB of a full update
_LENGTH_BYTES = 8  # in front of every piece


class Held(NamedTuple):
    """The version that a rank holds; ``series`` identifies the sender's history, 0 none."""

    series: int
    version: int


class PieceUser(Protocol):
    """What a rank does with the pieces of an update."""

    def start(self, *, is_current: bool) -> None:
        """Prepare for an update; ``is_current``: it starts from the version that is held."""

    def encode(self, piece: list[Segment], out: Octets, *, full: bool) -> int:
        """Write the frames of a piece, on the sender."""

    def take(self, frames: Octets, *, full: bool) -> None:
        """Use the frames of the next piece, on receivers."""

    def needs_full(self) -> bool:
        """Return whether this rank cannot use what changed."""


class UpdateOutcome(NamedTuple):
    """What an update sent: bytes on each link, and which ranks needed all values."""

    held: Held
    wire_bytes: int
    full: tuple[int, ...]


Act = Callable[[HostTopology], None]


def collective_runner(channel: Channel) -> Callable[[Act], None]:
    """Return what runs an ``Act`` with the topology of a group's hosts, one or several."""
    if isinstance(channel, MultiHostChannel):
        return channel.run_between_hosts
    hosts = HostMap((0,) * channel.world.num_ranks, ("this host",))
    topology = HostTopology(IntraHost(channel.world), None, hosts, channel.rank)
    return lambda act: act(topology)


def exchange_update(
    topology: HostTopology, source: int, layout: WeightLayout, held: Held, user: PieceUser
) -> UpdateOutcome:
    """Carry out one update on every rank of the group; return the version it led to."""
    is_sender = topology.rank == source
    stated = _all_gather(
        topology, (layout.digest, len(layout.names), layout.total_bytes, *held, is_sender)
    )
    _require_one_layout(stated, source)
    base = Held(*stated[source][3:5])
    others = [rank for rank in range(len(stated)) if rank != source]
    current = [rank for rank in others if base.version and Held(*stated[rank][3:5]) == base]
    user.start(is_current=topology.rank in current)
    wire_bytes = 0
    if current:
        wire_bytes += _send_pieces(topology, source, layout, user, full=False)
    needy = _all_gather(topology, (user.needs_full(),))
    full = tuple(rank for rank in others if needy[rank][0])
    if full:
        wire_bytes += _send_pieces(topology, source, layout, user, full=True)
    return UpdateOutcome(Held(base.series, base.version + 1), wire_bytes, full)


def _all_gather(topology: HostTopology, values: tuple[int, ...]) -> list[list[int]]:
    mine = torch.tensor(values, dtype=torch.int64)
    out = torch.empty(len(topology.hosts.of) * len(values), dtype=torch.int64)
    if topology.hosts.num > 1:
        inter_host_collectives.all_gather(topology, out, mine)
    else:
        outs = list(torch.split(out, len(values)))
        topology.intra_host.exchange(outs, [mine] * len(outs))
    return [each.tolist() for each in torch.split(out, len(values))]


def _require_one_layout(stated: list[list[int]], source: int) -> None:
    senders = [rank for rank, values in enumerate(stated) if values[5]]
    if senders != [source]:
        raise DisagreeError(
            f"source: expected one WeightSender, on rank {source} (got ranks {senders}).",
            "One rank makes a WeightSender; the others pass its rank as source.",
        )
    digest, count, nbytes = stated[source][:3]
    for rank, values in enumerate(stated):
        if values[0] != digest:
            raise DisagreeError(
                f"tensors: rank {rank} has {values[1]} of {values[2]} bytes, rank {source} has "
                f"{count} of {nbytes} bytes, or their names, order, shapes or dtypes differ.",
                "Pass the same names, dtypes and shapes in the same order on every rank.",
            )


def _send_pieces(
    topology: HostTopology, source: int, layout: WeightLayout, user: PieceUser, *, full: bool
) -> int:
    kind = "full update of weights" if full else "update of weights"
    with topology.session(kind, layout.total_bytes, f"source {source}") as session:
        chain = _UpdateChain(topology, session, source, layout, user, full=full)
        chain.run()
    return chain.wire_bytes


class _UpdateChain(PieceChain):
    """The pieces of one update: a length, then the frames of the piece's segments."""

    def __init__(
        self,
        topology: HostTopology,
        session: InterHostSession,
        source: int,
        layout: WeightLayout,
        user: PieceUser,
        *,
        full: bool,
    ) -> None:
        self._pieces, self._user, self._full = layout.pieces(), user, full
        room = _LENGTH_BYTES + max(map(layout.room, self._pieces), default=0)
        super().__init__(
            topology, session, source, count=len(self._pieces), room=room, ahead=_AHEAD
        )

    def encode(self, number: int, slot: Octets) -> int:
        """Write a piece of the update, on the sender."""
        frames = slot[_LENGTH_BYTES:]
        size = self._user.encode(self._pieces[number], frames, full=self._full)
        slot[:_LENGTH_BYTES].view(np.uint64)[0] = size
        return _LENGTH_BYTES + size

    def take(self, number: int, piece: Octets) -> None:
        """Pass a piece to the receiver."""
        del number
        if not self.is_root:
            self._user.take(piece[_LENGTH_BYTES:], full=self._full)

    def size_of(self, number: int, slot: Octets) -> int:
        """Return the length of a piece."""
        size = _LENGTH_BYTES + int(slot[:_LENGTH_BYTES].view(np.uint64)[0])
        if size > len(slot):
            raise CodecError(
                f"piece {number} of {self.count}: invalid length {size} (expected at most "
                f"{len(slot)}).",
                "All ranks must run the same version of weft.",
            )
        return size
