"""Pieces of any length along a chain of hosts, in order.

    root: encode ──▶ leader of host 1: receive, forward, share ──▶ leader of host 2 ──▶ ..
                                                      └─▶ the other ranks of its host

Every link carries a piece once, while the root encodes the next ones.
"""

from abc import ABC, abstractmethod

import torch

from weft.collectives.host_leaders import receive_windows
from weft.compress.frame import Octets
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import InterHostSession, wait_for


class PieceChain(ABC):
    """One rank's part: the root encodes pieces, every rank takes them.

    ``ahead`` is the number of receives that are posted ahead: Gloo delays data that arrive while a
    receive is being posted. All ranks pass the same ``count``, ``room`` and ``ahead``.
    """

    def __init__(
        self,
        topology: HostTopology,
        session: InterHostSession,
        root: int,
        *,
        count: int,
        room: int,
        ahead: int,
    ) -> None:
        self._topology, self._session, self._root = topology, session, root
        hosts, step = topology.hosts, (topology.host - topology.hosts.of[root]) % topology.hosts.num
        is_leader = topology.is_leader(root)
        self.is_root = topology.rank == root
        self.source = hosts.leader(topology.sources[0], root) if is_leader and step else None
        self.next = (
            hosts.leader(topology.destinations[0], root)
            if is_leader and step < hosts.num - 1
            else None
        )
        self.count = count
        self._ahead = min(ahead, count)
        self._ring = min(2 * self._ahead, count)  # received ones, and those being forwarded
        self._slots = topology.slots(self._ring, room)
        self._sent: dict[int, list[Transfer]] = {}
        self._incoming: dict[int, list[Transfer]] = {}
        self.wire_bytes = 0

    @abstractmethod
    def encode(self, number: int, slot: Octets) -> int:
        """Write a piece to the front of ``slot``, on the root; return its length."""

    @abstractmethod
    def take(self, number: int, piece: Octets) -> None:
        """Use a piece, on every rank; its memory is reused after ``wait_until_free``."""

    @abstractmethod
    def size_of(self, number: int, slot: Octets) -> int:
        """Return the length of the piece in ``slot``, which it must state itself."""

    def wait_until_free(self, number: int) -> None:
        """Wait until the memory of a piece is no longer used, if ``take`` left it to a thread."""
        del number

    def run(self) -> None:
        """Receive, forward, share and take every piece."""
        for number, asked in enumerate(receive_windows(self.count, self._ahead)):
            for each in asked:
                self._post_receive(each)
            self._process(number)

    def _post_receive(self, number: int) -> None:
        """Post the receive of a piece into a free slot."""
        self.wait_until_free(number - self._ring)
        wait_for(self._sent.pop(number - self._ring, []))
        if self.source is not None:
            slot = torch.from_numpy(self._slots[number % self._ring])
            self._incoming[number] = self._session.recv(slot, self.source)

    def _process(self, number: int) -> None:
        slot, size = self._received(number)
        self._forward_piece(number, slot[:size])
        size = self._share(number, slot, size)
        self.take(number, slot[:size])

    def _received(self, number: int) -> tuple[Octets, int]:
        """Return the slot of a piece and its length, which only a host's leader knows yet."""
        slot = self._slots[number % self._ring]
        if self.is_root:
            return slot, self.encode(number, slot)
        if self.source is None:
            return slot, 0
        wait_for(self._incoming.pop(number))
        return slot, self.size_of(number, slot)

    def _forward_piece(self, number: int, piece: Octets) -> None:
        self.wire_bytes += len(piece)
        if self.next is not None:
            self._sent[number] = self._session.send(torch.from_numpy(piece), self.next)

    def _share(self, number: int, slot: Octets, size: int) -> int:
        """Broadcast the piece to all ranks of this host; its length first."""
        topology = self._topology
        if topology.intra_host.alone:
            return size
        length = torch.tensor([size])
        at = topology.leader_local_rank(self._root)
        topology.intra_host.broadcast(length, at)
        size = int(length)
        topology.intra_host.broadcast_any_length(torch.from_numpy(slot[:size]), at)
        if not self.is_root and self.source is None:
            self.size_of(number, slot)
        return size
