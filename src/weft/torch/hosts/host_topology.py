"""Where a rank of several hosts stands, and the chunks in which it hears from the others."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from weft.torch.hosts.chunk_size import Pace
from weft.torch.hosts.chunks import LONE_CHUNK, as_bytes, chunk_bytes, chunks
from weft.torch.hosts.gloo_transport import Wire
from weft.torch.hosts.host_map import Hosts
from weft.torch.hosts.inter_host_session import Talk
from weft.torch.hosts.intra_host import Inside


class Place:
    """A rank's host, the hosts beyond, and who speaks for them."""

    def __init__(self, inside: Inside, wire: Wire, hosts: Hosts, rank: int) -> None:
        self.inside, self.wire, self.hosts, self.rank = inside, wire, hosts, rank
        self.host = hosts.of[rank]
        self.mates = hosts.ranks[self.host]
        # Each begins with the next host, so that they do not all send to one.
        self.to = [(self.host + step) % hosts.num for step in range(1, hosts.num)]
        self.sources = self.to[::-1]  # in the order in which they send to this one
        self._slots = np.zeros(0, np.uint8)
        self.pace = Pace()

    def talk(self, kind: str, nbytes: int, *about: object) -> Talk:
        """Begin a call that all ranks make alike."""
        said = ", ".join([f"{nbytes} bytes", *map(str, about)])
        return Talk(self.wire, self.hosts, self.rank, f"{kind}({said})")

    def slots(self, count: int, nbytes: int) -> NDArray[np.uint8]:
        """Give memory for pieces that pass through: the same in every call, with its pages."""
        stride = -(-nbytes // 64) * 64  # lines are not shared
        if len(self._slots) < count * stride:
            self._slots = np.zeros(count * stride, np.uint8)
        return self._slots[: count * stride].reshape(count, stride)

    def leads(self, root: int | None = None) -> bool:
        """Tell whether this rank speaks for its host."""
        return self.rank == self.hosts.leader(self.host, root)

    def leader_place(self, root: int | None = None) -> int:
        """Give the place of the one who does."""
        return self.hosts.place(self.hosts.leader(self.host, root))

    def pieces(self, parts: list[Tensor], to: int) -> list[Tensor]:
        """Cut what goes to a host: a lone rank has nobody to share chunks with meanwhile."""
        alone = len(self.hosts.ranks[to]) == 1
        sizes = [LONE_CHUNK if alone else chunk_bytes(part.nbytes) for part in parts]
        return [
            chunk
            for part, size in zip(parts, sizes, strict=True)
            for chunk in chunks(as_bytes(part), size)
        ]

    def parts_of(self, whole: Tensor, host: int) -> list[Tensor]:
        """Give the parts of a host's ranks in a tensor of everyone's, neighbours as one."""
        flat = whole.view(-1)
        each = flat.numel() // len(self.hosts.of)
        return [flat[first * each : last * each] for first, last in self.hosts.runs(host)]
