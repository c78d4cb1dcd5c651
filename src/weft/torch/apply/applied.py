"""What a plan in execution offers, on CPU ranks and on GPUs."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weft.planner.plan import Plan
from weft.torch.apply.step_watch import StepWatch
from weft.units import MIB, format_size, format_time

_TITLES = ("collective", "size", "planned", "path", "by plan", "by default", "why")


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

    def report(self) -> str:
        """Return the rows as a text table, after the durations of steps."""
        plan = self.plan
        text = (
            f"{plan.workload} on {plan.num_ranks} ranks of {self._where()}: planned "
            f"{format_time(plan.planned)} a step ({format_time(plan.low)} to "
            f"{format_time(plan.high)}), {format_time(plan.baseline)} by default"
        )
        lines = [text, *self._remarks()]
        lines += [
            f"measured: {format_time(v.seconds)} {'by default' if v.default else 'by plan'}"
            for v in self._watch.verdicts[-2:]
        ]
        table = [_TITLES]
        for row in self.rows():
            size, counts = format_size(row["nbytes"]), (str(row["by_plan"]), str(row["by_default"]))
            cells = (row["collective"], size, row["planned"], row["path"], *counts, row["why"])
            table.append(cells)
        widths = [max(len(cells[column]) for cells in table) for column in range(len(_TITLES) - 1)]
        for cells in table:
            padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
            lines.append("  ".join([*padded, cells[-1]]).rstrip())
        return "\n".join(lines)

    def _where(self) -> str:
        return self.plan.platform

    def _remarks(self) -> list[str]:
        """Return further lines of the report."""
        return []

    @abstractmethod
    def remove(self) -> None:
        """Restore the job as it was before the plan; fused modules stay in the model."""


def merged_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per distinct collective, strategy and path, with the sums of their counts."""
    alike: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("collective", "nbytes", "planned", "path"))
        kept = alike.setdefault(key, {**row, "by_plan": 0, "by_default": 0})
        kept["by_plan"] += row["by_plan"]
        kept["by_default"] += row["by_default"]
    return list(alike.values())
