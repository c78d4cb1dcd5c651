"""Work that is cut into slices, each of them meant for one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.errors import UsageError
from weft.schedule import Cost


@dataclass(frozen=True, slots=True)
class Sliced:
    """What one rank computes: for every rank, itself included, ``slices`` slices.

    ``cost`` is that of the whole work of a rank, ``nbytes`` what all its slices weigh together.
    """

    name: str
    num_ranks: int
    slices: int
    cost: Cost
    nbytes: int

    def __post_init__(self) -> None:
        if self.num_ranks < 2 or self.slices < 1:
            raise UsageError(
                f"{self.name} of {self.num_ranks} ranks in {self.slices} slices for each "
                "cannot be fused.",
                "It takes two ranks or more, and a slice or more for each of them.",
            )
        if self.nbytes % (self.num_ranks * self.slices):
            raise UsageError(
                f"{self.nbytes} bytes of {self.name} cannot be cut into {self.slices} slices "
                f"for each of {self.num_ranks} ranks.",
                "Choose another number of slices.",
            )

    @property
    def slice_bytes(self) -> int:
        """The bytes of one slice."""
        return self.nbytes // (self.num_ranks * self.slices)

    def part(self, *, occupancy: float = 1.0) -> Cost:
        """One slice by a kernel that keeps ``occupancy`` of the work in flight.

        What is in flight hides latencies, of arithmetic and of memory alike: a kernel with less
        of it takes longer by as much.
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
