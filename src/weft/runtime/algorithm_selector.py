"""Selection of the algorithm of a collective call, by message size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.collectives.catalogue import MOST_EAGER, REDUCING, ROOTED

if TYPE_CHECKING:
    from weft.hardware.device import Cores


@dataclass(frozen=True, slots=True)
class AlgorithmSelector:
    """Thresholds in bytes of a rank's input; comments state the measurements behind them.

    ``measured`` replaces those of ranks that have a core each, on a calibrated machine. Eager
    algorithms copy once more and synchronize once less. A synchronization takes a microsecond
    where every rank has a core, and tens of microseconds where ranks share one.
    """

    # 2 ranks on 2 cores, all_gather of ordinary memory, eager and pull: 90 and 177 us at 64 KiB,
    # 292 and 171 us at 256 KiB. In the heap the second copy gains nothing from 16 KiB on.
    eager: int = 64 << 10
    # 4 ranks on 2 cores, 64 KiB in the heap, eager and pull: 19 and 141 us.
    eager_oversubscribed: int = 256 << 10
    # Every rank reduces everything, so the work grows with the number of ranks. 2 ranks,
    # ordinary memory, eager and pull: 42 and 94 us at 64 KiB, 94 and 196 us at 256 KiB.
    eager_reduced: int = 64 << 10
    eager_reduced_oversubscribed: int = 64 << 10
    num_buffers: int = 2  # all wait for all: no rank is further ahead
    num_buffers_rooted: int = 8  # a root runs ahead of the receivers
    max_rotating_bytes: int = 256 << 10  # of all buffers: what stays in a core's cache

    def measured(self, cores: Cores | None) -> AlgorithmSelector:
        """Return the thresholds measured on a machine with a core for every rank."""
        if cores is None or not (cores.eager_up_to and cores.eager_reduced_up_to):
            return self
        return replace(self, eager=cores.eager_up_to, eager_reduced=cores.eager_reduced_up_to)

    def algorithm(self, kind: str, nbytes: int, num_ranks: int, *, oversubscribed: bool) -> str:
        """Return the algorithm; ``nbytes`` counts as in the catalogue of collectives."""
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
        """Return the number of scratch buffers that an eager algorithm rotates through."""
        if kind == "barrier":
            return 1
        if kind not in ROOTED:
            return self.num_buffers
        return max(
            self.num_buffers,
            min(self.num_buffers_rooted, self.max_rotating_bytes // max(nbytes, 1)),
        )
