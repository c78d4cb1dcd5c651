"""Which algorithm carries out a call: one place, by sizes measured on a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.collectives.catalogue import MOST_EAGER, REDUCING, ROOTED

if TYPE_CHECKING:
    from weft.hardware.device import Cores


@dataclass(frozen=True, slots=True)
class AlgorithmSelector:
    """Thresholds in bytes of a rank's input, with what was measured where they stand.

    Those without ``oversubscribed`` are for a machine that was not calibrated: ``measured`` has its own.
    Eager algorithms copy once more and meet once less. A meeting costs a microsecond
    where every rank has a core, and tens of them where ranks take turns on one.
    """

    # 2 ranks on 2 cores, all_gather of ordinary memory: 90 against 177 us at 64 KiB, 292
    # against 171 at 256 KiB. In the heap the second copy wins nothing from 16 KiB on.
    eager: int = 64 << 10
    # 4 ranks on 2 cores, 64 KiB in the heap: 19 against 141 us.
    eager_oversubscribed: int = 256 << 10
    # Every rank reduces everything, so the work grows with the ranks: 2 ranks, ordinary
    # memory, 42 against 94 us at 64 KiB, 94 against 196 at 256 KiB.
    eager_reduced: int = 64 << 10
    eager_reduced_oversubscribed: int = 64 << 10
    num_buffers: int = 2  # all wait for all: nobody can be further ahead
    num_buffers_rooted: int = 8  # a root runs ahead of those that take
    max_rotating_bytes: int = 256 << 10  # bytes of all copies: what stays in a core's cache

    def measured(self, cores: Cores | None) -> AlgorithmSelector:
        """Give the choice for a machine, where ranks that have a core each were measured."""
        if cores is None or not (cores.eager_up_to and cores.eager_reduced_up_to):
            return self
        return replace(self, eager=cores.eager_up_to, eager_reduced=cores.eager_reduced_up_to)

    def algorithm(self, kind: str, nbytes: int, num_ranks: int, *, oversubscribed: bool) -> str:
        """Name the algorithm; ``nbytes`` counts as the catalogue does."""
        plain = "direct" if kind in ("gather", "scatter", "barrier") else "pull"
        if num_ranks > MOST_EAGER:
            return plain
        if kind == "barrier":
            return "eager"
        mine = nbytes // num_ranks if kind in ("all_gather", "gather") else nbytes
        if kind in REDUCING:
            limit = self.eager_reduced_oversubscribed if oversubscribed else self.eager_reduced
        else:
            limit = self.eager_oversubscribed if oversubscribed else self.eager
        if mine <= limit:
            return "eager"
        return plain

    def num_buffers_of(self, kind: str, nbytes: int) -> int:
        """Say how many copies of its scratch an eager algorithm has; a barrier has none."""
        if kind == "barrier":
            return 1
        if kind not in ROOTED:
            return self.num_buffers
        return max(
            self.num_buffers,
            min(self.num_buffers_rooted, self.max_rotating_bytes // max(nbytes, 1)),
        )
