"""What one step does, rank by rank, with no decision about how it is carried out."""

from weft.workload.alone import PriceSource, queues_of
from weft.workload.host import NO_HOST, HostModel
from weft.workload.step import Collective, Memory, Op, Step, Unsupported, Workload, check

__all__ = [
    "NO_HOST",
    "Collective",
    "HostModel",
    "Memory",
    "Op",
    "PriceSource",
    "Step",
    "Unsupported",
    "Workload",
    "check",
    "queues_of",
]
