"""Selection of the algorithm of a collective call, by message size."""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from weft._core import time_copies, time_reads
from weft.collectives.catalogue import BUILDERS, MOST_EAGER, REDUCING, ROOTED

if TYPE_CHECKING:
    from weft.hardware.device import Cores


# What a read from another process may take, in copies: it replaces two (into the ring and out of
# it) and a synchronization for each part. 1.3 on a Xeon (16.5 and 21 GB/s), 3.9 to 6.5 on an EPYC.
_MOST_COPIES = 2.5
_PROBED_BYTES = 1 << 20
_PROBES = 5


@cache
def reads_pay() -> bool:
    """Measure, in some milliseconds, whether reading other processes is faster than staging."""
    memory = [ctypes.create_string_buffer(_PROBED_BYTES) for _ in range(2)]
    src, dst = map(ctypes.addressof, memory)
    ctypes.memset(src, 1, _PROBED_BYTES)  # pages of their own, not the one of zeros
    pid, copying, reading = os.getpid(), math.inf, math.inf
    for _ in range(_PROBES):  # the least of several: others may have the core meanwhile
        copying = min(copying, time_copies(src, dst, _PROBED_BYTES, streamed=False, count=2))
        reading = min(reading, time_reads(pid, src, dst, _PROBED_BYTES, 2))
    return reading <= _MOST_COPIES * copying


@dataclass(frozen=True, slots=True)
class AlgorithmSelector:
    """Thresholds in bytes of a rank's input; comments state the measurements behind them.

    ``measured`` replaces those of ranks that have a core each, on a calibrated machine. Eager
    algorithms copy once more and synchronize once less. A synchronization takes a microsecond
    where every rank has a core, and tens of microseconds where ranks share one.
    """

    # 2 ranks on 2 cores, all_gather of ordinary memory, eager and staged: 2.4 and 2.6 us at 8 KiB,
    # 3.7 and 3.8 us at 32 KiB, 5.6 and 5.8 us at 64 KiB; in the heap 2.4 and 2.0, 3.6 and 2.3.
    eager: int = 8 << 10
    # 4 ranks on 2 cores, 64 KiB in the heap, eager and pull: 19 and 141 us.
    eager_oversubscribed: int = 256 << 10
    # Every rank reduces everything, so the work grows with the number of ranks. 2 ranks,
    # ordinary memory, eager and staged: 2.1 and 2.2 us at 8 KiB, 2.6 and 2.5 us at 16 KiB.
    eager_reduced: int = 8 << 10
    eager_reduced_oversubscribed: int = 64 << 10
    # 2 ranks, all_reduce, staged and pull: ordinary memory 43 and 85 us at 1 MiB, 164 and 230 us at
    # 4 MiB, 668 and 687 us at 16 MiB; in the heap 15 and 15, 62 and 53, 244 and 201 us. Ranks that
    # share a core would synchronize too often.
    staged: int = 4 << 20
    # What only moves bytes, where reads_pay(). Staged and pull on a Xeon: all_gather 20 and 20 us
    # at 64 KiB in total, 22 and 20 at 128 KiB, 160 and 135 at 1 MiB; all_to_all 15 and 14, 23 and
    # 20, 165 and 128 us. On an EPYC, where reads do not pay, pull took 1.8 times as long as staged
    # for an all_gather of 64 KiB a rank, 1.9 times for 1 MiB; all_to_all 1.4 and 1.2 times.
    staged_unreduced: int = 32 << 10
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
        if oversubscribed or "staged" not in BUILDERS[kind]:
            return plain
        limit = self.staged if kind in REDUCING else self.staged_unreduced
        return "staged" if mine <= limit else plain

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
