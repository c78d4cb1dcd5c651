"""Which strategy a runtime should use for a pair, and why, in a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.c3.strategies import REDUCTIONS

if TYPE_CHECKING:
    from weft.c3.heuristics import Rule
    from weft.c3.scenarios import Scenario
    from weft.c3.strategies import Choice


@dataclass(frozen=True, slots=True)
class Advice:
    """What the rule chose, and the reason."""

    choice: Choice
    why: str


def advise(scenario: Scenario, rule: Rule) -> Advice:
    """Ask the rule, and say what decided."""
    choice = rule.choose(scenario)
    return Advice(choice, _why(scenario, choice, rule))


def _why(scenario: Scenario, choice: Choice, rule: Rule) -> str:
    grid, total = rule.grid(scenario.gemm), rule.device.units
    comm = rule.comm(scenario.collective, by_engines=False)
    lost = _percent_slower(scenario, comm.filled, rule)
    if choice.by_engines:
        spared = f"engines leave all {total} units to the GEMM ({lost:+.0f} % without {comm.filled})"
        if not choice.units:
            return spared
        less = _percent_slower(scenario, choice.units, rule)
        if less < 0:
            return f"engines move it, and without {choice.units} units the GEMM thrashes less ({less:+.0f} %)"
        if scenario.collective in REDUCTIONS:
            return f"engines move it, and {choice.units} units are kept free for its sums"
        return f"engines move it, and on {choice.units} units fewer the GEMM asks less of memory"
    match choice.strategy:
        case "serial":
            return "either alone is faster than both at once"
        case "concurrent":
            return f"{grid.tiles} workgroups leave slots free on {total} units: order does not matter"
        case "priority":
            return (
                f"{comm.filled} workgroups before {grid.tiles}: the collective does not wait for slots"
            )
        case _:
            return f"{choice.units} units for the collective cost the GEMM {lost:+.0f} %"


def _percent_slower(scenario: Scenario, lost: int, rule: Rule) -> float:
    whole = rule.gemm(scenario.gemm, 0).seconds
    return 100 * (rule.gemm(scenario.gemm, lost).seconds / whole - 1)
