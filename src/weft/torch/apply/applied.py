"""What a plan in execution offers, on CPU ranks and on GPUs."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weft.planner.plan import Plan
from weft.torch.apply.step_watch import StepWatch

MIB = 1 << 20


class Applied(ABC):
    """A plan in execution: routes of its collectives, and a monitor of step times."""

    plan: Plan
    bucket: int | None
    _watch: StepWatch

    @property
    def state(self) -> str:
        """``plan``, or ``default`` after measured steps contradicted the plan."""
        return "default" if self._watch.default else "plan"

    @property
    def fused(self) -> tuple[nn.Module, ...]:
        """The fused modules that replace plain ones."""
        return ()

    def ddp(self, module: nn.Module, **options: Any) -> DistributedDataParallel:
        """Return a DDP with the buckets of the plan."""
        if self.bucket is not None:
            options.setdefault("bucket_cap_mb", self.bucket / MIB)
        return DistributedDataParallel(module, **options)

    @abstractmethod
    def step(self) -> None:
        """Mark the end of a step; its duration is compared with the plan."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return a row per collective: what was planned, how it was executed, and how often."""

    @abstractmethod
    def report(self) -> str:
        """Return the rows as a text table, after the durations of steps."""

    @abstractmethod
    def remove(self) -> None:
        """Restore the job as it was before the plan; fused modules stay in the model."""
