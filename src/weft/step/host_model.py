"""What the host spends on an op before, between and after its launches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weft.step.step_graph import Op


@dataclass(frozen=True, slots=True)
class HostModel:
    """The overheads T1 to T5 of an eager framework, in seconds (arXiv 2201.07821, 2404.12674).

    The launch itself (T4) belongs to the device, and what lies between launches (T5) to ops of
    several kernels, which are written as several ops here.
    """

    gap: float = 7.7e-6  # T1, between two ops: the mean of arXiv 2404.12674
    # T2, from the start of an op to its first launch, and T3, from its last launch to its end.
    # Medians over 7,044 ops that launch, of a profiled training job on 8 A100 (the recsys trace of
    # HolisticTraceAnalysis): the profiler's own share is in them.
    before: float = 10e-6
    after: float = 3e-6
    # What the process group adds to its ops: the median of 46 us that record_param_comms takes in
    # a DDP job on 2 V100 (another of its traces), less what an op takes anyway.
    collective: float = 33e-6
    waits: bool = False  # the device is the host itself: a kernel is a function that returns
    backward: float | None = None  # the gap between ops of this phase, where it is another
    optimizer: float | None = None
    # Seconds of operators that were seen in a trace, by name.
    kinds: Mapping[str, float] = field(default_factory=dict, hash=False)

    def seconds(self, op: Op) -> float:
        """Return what the host does for ``op`` apart from launching it."""
        if op.host is not None:
            return op.host
        if op.kind == "host":
            return 0.0
        if op.name in self.kinds:
            return self.kinds[op.name]
        own = {"backward": self.backward, "optimizer": self.optimizer}.get(op.phase)
        gap = self.gap if own is None else own
        return gap + self.before + self.after + self.collective * (op.kind == "collective")


NO_HOST = HostModel(0.0, 0.0, 0.0, 0.0)  # what a captured graph replays costs nothing to issue
