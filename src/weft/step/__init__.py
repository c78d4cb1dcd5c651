"""One step of a job: what it does (StepGraph), and how long that takes (StepEngine)."""

from weft.step.durations import Execution, PriceSource, queues_of
from weft.step.engine import StepEngine
from weft.step.host_model import NO_HOST, HostModel
from weft.step.run import StepRun
from weft.step.step_graph import Collective, Memory, Op, RankStep, StepGraph, Unsupported, check

__all__ = [
    "NO_HOST",
    "Collective",
    "Execution",
    "HostModel",
    "Memory",
    "Op",
    "PriceSource",
    "RankStep",
    "StepEngine",
    "StepGraph",
    "StepRun",
    "Unsupported",
    "check",
    "queues_of",
]
