"""One job after another on more and more devices: what a step takes, and what strategies buy."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from weft.hardware import Platform, platform
from weft.models.named import generate
from weft.planner.plan import Limits
from weft.planner.planning import drafted_step
from weft.planner.predict import predict
from weft.planner.prices import Prices, default_library
from weft.schedule.strategy import STRATEGIES
from weft.step import StepEngine

if TYPE_CHECKING:
    from weft.step import StepGraph

NODE = "mi300x-8"
_ROOM = 1 << 62  # bytes of memory that a strategy may take: as many as it wants
RANKS = (1, 8, 64, 512, 4096, 32768, 131072)


@dataclass(frozen=True, slots=True)
class Job:
    """A workload whose batch grows with the devices: ``batch`` samples for every ``replica``."""

    name: str
    workload: str
    settings: tuple[tuple[str, str], ...]
    batch: int
    replica: int = 1

    def on(self, num_ranks: int) -> StepGraph:
        """Make it for ``num_ranks`` ranks."""
        settings = dict(self.settings)
        settings["batch"] = str(self.batch * (num_ranks // self.replica))
        return generate(self.workload, num_ranks, settings)


_LLAMA = (("recompute", "true"), ("seq", "4096"))
JOBS = (
    Job("llama-70b, fsdp", "llama-70b", (*_LLAMA, ("fsdp", "true")), 1),
    Job("llama-70b, tp 8 + fsdp", "llama-70b", (*_LLAMA, ("tp", "8"), ("fsdp", "true")), 8, 8),
    Job("llama-70b, tp 8 + dp", "llama-70b", (*_LLAMA, ("tp", "8")), 8, 8),
    Job("dlrm", "dlrm", (), 2048),
)


@dataclass(frozen=True)
class Point:
    """A job on so many ranks: its step, what of it is exposed, and the step by each strategy.

    ``base`` is what plans start from, ``alone`` has the step if every pair that gains by a strategy
    uses it.
    """

    job: Job
    num_ranks: int
    fits: bool
    step: float
    exposed: float
    communication: float
    base: float
    alone: dict[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """How much of the step is exposed communication, in percent."""
        return 100 * self.exposed / self.step

    def saved(self, strategy: str) -> float:
        """Return how much of the step a strategy takes away, in percent."""
        return 100 * (1 - self.alone.get(strategy, self.base) / self.base)


@lru_cache(maxsize=256)
def point(job: Job, num_ranks: int) -> Point:
    """Predict and price one job on so many ranks."""
    node = platform(NODE)
    size = node.num_ranks
    machine = (
        platform(f"{NODE}x{num_ranks // size}") if num_ranks > size else node.resized(num_ranks)
    )
    workload = job.on(num_ranks)
    found = predict(workload, machine, anyway=True)
    memory, device = workload.memory, machine.require_device()
    return Point(
        job,
        num_ranks,
        memory is None or memory.total <= device.memory_bytes,
        found.seconds,
        found.breakdown["exposed"],
        found.communication,
        *_by_strategy(workload, machine),
    )


def _by_strategy(workload: StepGraph, machine: Platform) -> tuple[float, dict[str, float]]:
    """Return the seconds of a step as it is, and by each strategy alone where it helps."""
    prices = Prices(machine, library=default_library(machine))
    search = drafted_step(StepEngine(workload, machine, prices), prices, Limits(), _ROOM).search
    alone = {}
    for strategy in STRATEGIES:
        chosen, _ = search.by_strategy(strategy)
        chosen = search.reverted(chosen)
        if chosen != search.base:
            alone[strategy] = search.seconds(chosen)
    return search.base_seconds, alone
