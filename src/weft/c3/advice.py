"""Which strategy a runtime should use for a pair, and why, in a line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.c3.pair_pricing import Pricer, applying, gemm_slowdown, price_scenario
from weft.c3.scenarios import Scenario
from weft.c3.strategies import without_units
from weft.collectives.catalogue import REDUCING
from weft.schedule.strategy import Strategy
from weft.simulator import collective_units


@dataclass(frozen=True, slots=True)
class Advice:
    """The choice that a runtime should make, and the reason."""

    choice: Strategy
    why: str


def advised_rows(
    scenario: Scenario,
    pricer: Pricer,
    strategies: Sequence[str],
    units: int | None,
    *,
    in_full: bool = False,
) -> list[dict[str, Any]]:
    """Return rows of the strategies asked for, or of all that apply; the best says why.

    ``in_full`` adds how many times as long as alone the GEMM takes.
    """
    wanted = applying(scenario, strategies, units, pricer.platform)
    advice = advise(scenario, pricer)
    rows = []
    for priced in price_scenario(scenario, pricer, wanted, units=units):
        chosen = priced.choice.name == advice.choice.name
        row = priced.as_row() | {"chosen": chosen, "why": advice.why if chosen else ""}
        if in_full:
            row["gemm_slowdown"] = gemm_slowdown(scenario, priced.choice, pricer.platform)
        rows.append(row)
    return rows


def advise(scenario: Scenario, pricer: Pricer) -> Advice:
    """Return the fastest choice, and what decided."""
    choice = pricer.best(scenario)
    return Advice(choice, _why(scenario, choice, pricer))


def _why(scenario: Scenario, choice: Strategy, pricer: Pricer) -> str:
    tiles, total = pricer.grid(scenario.gemm).tiles, pricer.device.units
    units = collective_units(pricer.platform, scenario.collective)
    lost = _percent_slower(scenario, units, pricer)
    if choice.kind.by_engines:
        spared = f"engines leave all {total} units to the GEMM ({lost:+.0f} % without {units})"
        return _why_fewer(scenario, choice.units, pricer) if choice.units else spared
    if choice.kind.exclusive:
        return "either alone is faster than both at once"
    if choice.kind.masks:
        return f"{choice.units} units for the collective cost the GEMM {lost:+.0f} %"
    if choice.kind.first:
        return f"{units} workgroups before {tiles}: the collective waits for no slots"
    return f"{tiles} workgroups leave slots free on {total} units: any order will do"


def _why_fewer(scenario: Scenario, units: int, pricer: Pricer) -> str:
    less = _percent_slower(scenario, units, pricer)
    if less < 0:
        return f"engines move it, and without {units} units the GEMM thrashes less ({less:+.0f} %)"
    if scenario.collective in REDUCING:
        return f"engines move it, and {units} units are kept free for its sums"
    return f"engines move it, and on {units} units fewer the GEMM asks less of memory"


def _percent_slower(scenario: Scenario, lost: int, pricer: Pricer) -> float:
    slower = without_units(scenario.gemm, lost, pricer.device)
    return 100 * (slower / without_units(scenario.gemm, 0, pricer.device) - 1)
