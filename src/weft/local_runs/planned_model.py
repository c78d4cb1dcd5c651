"""A small model, its captured step, and the plan for it on this machine."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.hardware import Platform, is_calibrated, platform
from weft.hardware.network import Level
from weft.local_runs.synthetic_models import RANKS, SyntheticModel
from weft.planner.plan import Plan
from weft.planner.planning import plan

if TYPE_CHECKING:
    from weft.calibration.torch_op_calls import OpCall
    from weft.calibration.torch_op_times import OpTime
    from weft.calibration.torch_timed_steps import CapturedStep
    from weft.step import StepGraph

STEPS = 2  # per measurement: the speed of a core changes within seconds
# A message between processes of one machine by sockets: two wake-ups and two calls.
SOCKET_LATENCY = 250e-6


@dataclass(frozen=True)
class Planned:
    """A model, the plan for its step, and the platform it was made for."""

    model: SyntheticModel
    step: "CapturedStep"
    graph: "StepGraph"
    plan: Plan
    on: Platform

    @classmethod
    def of(cls, model: SyntheticModel, on: Platform, *, exact: bool = True) -> "Planned":
        """Capture a step and plan it.

        ``exact``: ops are timed on this machine if it was calibrated; otherwise cost models price
        them.
        """
        from weft.calibration.torch_op_times import stored_times
        from weft.local_runs.torch_planned_steps import captured

        step = captured(model)
        return cls.timed(model, step, on, stored_times(step.unique) if exact and on.torch else {})

    @classmethod
    def timed(
        cls,
        model: SyntheticModel,
        step: "CapturedStep",
        on: Platform,
        times: "Mapping[OpCall, OpTime]",
    ) -> "Planned":
        """Plan a captured step by these durations of its ops."""
        graph = step.timed(times, on, "gloo") if on.torch else step.graph
        return cls(model, step, graph, plan(graph, on), on)

    def case(self, *, by_plan: bool, trace: str = "") -> dict[str, Any]:
        """Return the request for a rank."""
        text = self.plan.to_json().decode() if by_plan else None
        asked = {"model": asdict(self.model), "plan": text, "on": self.on.name, "trace": trace}
        return {"planned": {**asked, "steps": STEPS}}


def machine(rate: float, achieved: float = 0.0) -> Platform:
    """Return this machine, or two hosts like it with one rank each and a link of that rate.

    ``achieved`` is the rate that an exchange reaches through the link, if it was measured.
    """
    here = platform("here" if is_calibrated() else "cpu", num_ranks=RANKS)
    if not rate:
        return here
    inside = here.levels[0]
    link = Level("switch", RANKS, achieved or rate, SOCKET_LATENCY)
    return replace(
        here,
        name=f"{here.name}@{8 * rate / 1e9:g}gbit",
        levels=(inside.cut(1), link),
        node_levels=1,
    )
