"""The host topology from the view of one rank, with its transports and chunks."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from weft.collectives.host_leaders import LONE_CHUNK, chunk_bytes
from weft.torch.hosts.chunk_size import ChunkSizeTuner
from weft.torch.hosts.chunks import as_bytes, chunks
from weft.torch.hosts.gloo_transport import GlooTransport
from weft.torch.hosts.host_map import HostMap
from weft.torch.hosts.inter_host_session import InterHostSession
from weft.torch.hosts.intra_host import IntraHost
from weft.torch.hosts.nic_queue import NicQueues


class HostTopology:
    """A rank's host, the other hosts and their leaders; a single host needs no transport."""

    def __init__(
        self, intra_host: IntraHost, transport: GlooTransport | None, hosts: HostMap, rank: int
    ) -> None:
        self.intra_host, self.hosts, self.rank = intra_host, hosts, rank
        self._transport = transport
        self.host = hosts.of[rank]
        self.local_ranks = hosts.ranks[self.host]
        # Each host starts with the next one, so that they do not all send to the same.
        self.destinations = [(self.host + step) % hosts.num for step in range(1, hosts.num)]
        self.sources = self.destinations[::-1]  # in the order in which they send to this one
        self._slots = np.zeros(0, np.uint8)
        self.chunk_sizes = ChunkSizeTuner()
        self.nic_queues = NicQueues(intra_host.world, hosts, rank)

    @property
    def transport(self) -> GlooTransport:
        """The connections to other hosts."""
        assert self._transport is not None
        return self._transport

    def session(self, kind: str, nbytes: int, *about: object) -> InterHostSession:
        """Return the session of a call that all ranks make."""
        said = ", ".join([f"{nbytes} bytes", *map(str, about)])
        return InterHostSession(self._transport, self.hosts, self.rank, f"{kind}({said})")

    def slots(self, count: int, nbytes: int) -> NDArray[np.uint8]:
        """Return slots for pieces in transit; their memory is reused by every call."""
        stride = -(-nbytes // 64) * 64  # slots do not share cache lines
        if len(self._slots) < count * stride:
            self._slots = np.zeros(count * stride, np.uint8)
        return self._slots[: count * stride].reshape(count, stride)

    def is_leader(self, root: int | None = None) -> bool:
        """Return whether this rank is the leader of its host."""
        return self.rank == self.hosts.leader(self.host, root)

    def leader_local_rank(self, root: int | None = None) -> int:
        """Return the local rank of the leader."""
        return self.hosts.local_rank(self.hosts.leader(self.host, root))

    def pieces(self, parts: list[Tensor], to: int) -> list[Tensor]:
        """Split data for a host into chunks; a single rank gets long ones, as it shares none."""
        alone = len(self.hosts.ranks[to]) == 1
        sizes = [LONE_CHUNK if alone else chunk_bytes(part.nbytes) for part in parts]
        return [
            chunk
            for part, size in zip(parts, sizes, strict=True)
            for chunk in chunks(as_bytes(part), size)
        ]
