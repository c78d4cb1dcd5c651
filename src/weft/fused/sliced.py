"""Work divided into slices, each of them for one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.errors import UsageError
from weft.schedule import Cost


@dataclass(frozen=True, slots=True)
class Sliced:
    """The work of one rank: ``slices`` slices for every rank, including itself.

    ``cost`` is that of a rank's whole work, ``nbytes`` the size of all its slices together.
    """

    name: str
    num_ranks: int
    slices: int
    cost: Cost
    nbytes: int

    def __post_init__(self) -> None:
        if self.num_ranks < 2 or self.slices < 1:
            raise UsageError(
                f"{self.name}: cannot fuse {self.num_ranks} ranks with {self.slices} slices each.",
                "Use two ranks or more, and at least one slice per rank.",
            )
        if self.nbytes % (self.num_ranks * self.slices):
            raise UsageError(
                f"{self.name}: {self.nbytes} bytes cannot be divided into {self.slices} slices "
                f"for each of {self.num_ranks} ranks.",
                "Choose another number of slices.",
            )

    @property
    def slice_bytes(self) -> int:
        """The size of one slice in bytes."""
        return self.nbytes // (self.num_ranks * self.slices)

    def part(self, *, occupancy: float = 1.0) -> Cost:
        """Return the cost of one slice in a kernel with reduced occupancy.

        Work in flight hides the latencies of arithmetic and memory alike: with a fraction
        ``occupancy`` of it in flight, the kernel takes longer by the inverse.
        """
        share = 1 / (self.num_ranks * self.slices * occupancy)
        whole = self.cost
        return replace(
            whole,
            shape=(),
            flops=whole.flops * share,
            nbytes=round(whole.nbytes * share),
            tiles=max(1, whole.tiles // (self.num_ranks * self.slices)),
        )
