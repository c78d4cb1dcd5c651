"""Plans by hand, for tests of their execution."""

from __future__ import annotations

from weft.hardware.software_stack import SoftwareStack, completed_stack
from weft.planner.plan import Choice, Limits, Plan
from weft.schedule.strategy import Strategy
from weft.step import Collective


def choice_of(what, strategy, settings, ops=(0,)):
    return Choice(
        f"{what.kind} {what.nbytes}",
        ops[0],
        what,
        Strategy.of(strategy, settings),
        seconds=1.0,
        low=0.5,
        high=1.5,
        gain=0.1,
        why="because",
        ops=ops,
    )


def plan_for(machine, *choices, ranks=8, stack=None, **changes):
    """Return a plan; a choice is (kind, nbytes, strategy, settings)."""
    vendor = "AMD" if machine.startswith("mi") else "NVIDIA"
    versions = completed_stack(stack or SoftwareStack(), vendor)
    made = [
        choice_of(Collective(kind, nbytes, "bf16", "dp"), strategy, settings, ops=(number,))
        for number, (kind, nbytes, strategy, settings) in enumerate(choices)
    ]
    named = {"baseline": 2.0, "planned": 1.0, "low": 0.5, "high": 1.5, **changes}
    return Plan(
        "job", machine, ranks, tuple(made), fingerprint="", **named, budget=Limits(stack=versions)
    )
