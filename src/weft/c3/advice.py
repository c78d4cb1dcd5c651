"""Which strategy a runtime should use for a pair, and why, in a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.c3.pricing import applying, price_scenario
from weft.collectives.catalogue import REDUCING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.c3.heuristics import Rule
    from weft.c3.pricing import Pricer
    from weft.c3.scenarios import Scenario
    from weft.c3.strategies import Choice


@dataclass(frozen=True, slots=True)
class Advice:
    """What the rule chose, and the reason."""

    choice: Choice
    why: str


def advised_rows(
    scenario: Scenario, pricer: Pricer, strategies: Sequence[str], units: int | None
) -> list[dict[str, Any]]:
    """The scenario by the strategies asked for, or by all that apply; the one to use says why."""
    wanted = applying(scenario, strategies, units, pricer.platform)
    advice = advise(scenario, pricer.rule)
    rows = []
    for priced in price_scenario(scenario, pricer, wanted, units=units):
        chosen = priced.choice.strategy == advice.choice.strategy
        rows.append(priced.as_row() | {"chosen": chosen, "why": advice.why if chosen else ""})
    return rows


def advise(scenario: Scenario, rule: Rule) -> Advice:
    """Ask the rule, and say what decided."""
    choice = rule.choose(scenario)
    return Advice(choice, _why(scenario, choice, rule))


def _why(scenario: Scenario, choice: Choice, rule: Rule) -> str:
    tiles, total = rule.grid(scenario.gemm).tiles, rule.device.units
    units = rule.comm(scenario.collective, by_engines=False).filled
    lost = _percent_slower(scenario, units, rule)
    if choice.by_engines:
        spared = f"engines leave all {total} units to the GEMM ({lost:+.0f} % without {units})"
        return _why_fewer(scenario, choice.units, rule) if choice.units else spared
    return {
        "serial": "either alone is faster than both at once",
        "concurrent": f"{tiles} workgroups leave slots free on {total} units: any order will do",
        "priority": f"{units} workgroups before {tiles}: the collective waits for no slots",
    }.get(choice.strategy, f"{choice.units} units for the collective cost the GEMM {lost:+.0f} %")


def _why_fewer(scenario: Scenario, units: int, rule: Rule) -> str:
    less = _percent_slower(scenario, units, rule)
    if less < 0:
        return f"engines move it, and without {units} units the GEMM thrashes less ({less:+.0f} %)"
    if scenario.collective in REDUCING:
        return f"engines move it, and {units} units are kept free for its sums"
    return f"engines move it, and on {units} units fewer the GEMM asks less of memory"


def _percent_slower(scenario: Scenario, lost: int, rule: Rule) -> float:
    whole = rule.gemm(scenario.gemm, 0).seconds
    return 100 * (rule.gemm(scenario.gemm, lost).seconds / whole - 1)
