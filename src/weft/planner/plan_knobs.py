"""The knobs of a plan: what carries out each of its choices on a software stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import PlanError
from weft.gpu.emit import PlannedCollective, PlannedKnobs
from weft.gpu.knobs import KnobExecution, NotExecutable, StrategyDemand, execution_of
from weft.hardware.software_stack import completed_stack

if TYPE_CHECKING:
    from weft.hardware import Device
    from weft.hardware.software_stack import SoftwareStack
    from weft.planner.plan import Choice, Plan


def choice_execution(
    choice: Choice, device: Device, stack: SoftwareStack
) -> KnobExecution | NotExecutable:
    """Return how a choice is carried out. That its group fits was checked when it was planned."""
    demand = StrategyDemand(
        choice.strategy,
        choice.collective.kind,
        choice.collective.nbytes,
        num_ranks=1,
        vendor=device.vendor,
        producer="gemm" if choice.strategy.kind.sliced else "",
    )
    return execution_of(demand, stack)


def plan_knobs(plan: Plan, device: Device, stack: SoftwareStack | None = None) -> PlannedKnobs:
    """Return the knobs of all choices, on the plan's own stack or another one.

    Raises PlanError for a plan for CPU ranks, and where the stack lacks an engine.
    """
    if device.is_core:
        raise PlanError(
            f"plan: made for CPU ranks of {plan.platform}; it has no knobs of GPUs.",
            "Execute it with weft.torch.apply, or plan for GPUs: weft plan MODEL --on h100-8.",
        )
    running = stack or completed_stack(plan.budget.stack, device.vendor)
    found, refused = [], []
    for choice in plan.choices:
        how = choice_execution(choice, device, running)
        if isinstance(how, NotExecutable):
            refused.append(f"{choice.pair} by {choice.strategy}: {how.reason}")
            continue
        what = choice.collective
        found.append(
            PlannedCollective(choice.pair, what.kind, what.nbytes, what.group, choice.strategy, how)
        )
    if refused:
        given = ",".join(f"{name}={version}" for name, version in running.versions.items())
        raise PlanError(
            f"plan: made for {plan.budget.stack}, this stack is {running}: {refused[0]}"
            + (f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""),
            f"Plan again with --stack {given}.",
        )
    title = f"{plan.workload} on {plan.num_ranks} ranks of {plan.platform}"
    return PlannedKnobs(title, plan.num_ranks, device.vendor, running, tuple(found))
