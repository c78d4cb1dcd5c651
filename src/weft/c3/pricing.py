"""Pairs priced by the simulator, ten thousand of them in seconds.

What is asked again and again is prepared once for each form of a schedule: which streams and
engines there are, and in which order they are launched. Sizes, tiles and units are then put in
place. The answers are those of ``simulate`` on ``pair_schedule``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.c3.heuristics import Rule
from weft.c3.scenarios import Gemm, Scenario
from weft.c3.strategies import (
    STRATEGIES,
    Choice,
    check_choice,
    comm_alone,
    comm_units,
    compute_alone,
    engine_collective,
    launches_comm_first,
    pair_schedule,
)
from weft.simulator import Prepared, collective_units

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weft.cost import Grid
    from weft.hardware import Platform
    from weft.schedule import Schedule

_UNIT = 1 << 20  # bytes for each rank of the schedule that is prepared


@dataclass
class Pricer:
    """Prices pairs on one platform."""

    platform: Platform
    rule: Rule = field(init=False)
    _forms: dict[tuple[str, str], Prepared] = field(default_factory=dict)
    _alone: dict[Gemm, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rule = Rule(self.platform)

    @property
    def base(self) -> int:
        """The bytes of the collective that stands in prepared schedules."""
        return _UNIT * self.platform.num_ranks

    def compute(self, gemm: Gemm) -> float:
        """Seconds of the GEMM alone, on all units."""
        if gemm not in self._alone:
            units = self.platform.require_device().units
            form = self._form("compute", "all_gather")
            self._alone[gemm] = form.seconds(grid=self._grid(gemm), grid_units=units)
        return self._alone[gemm]

    def comm(self, scenario: Scenario, units: int | None = None) -> float:
        """Seconds of the collective kernel alone, on the units that fill the links or fewer."""
        units = units or collective_units(self.platform, scenario.collective)
        return self._form("comm", scenario.collective).seconds(self._scale(scenario), units=units)

    def engines(self, scenario: Scenario) -> float:
        """Seconds of the collective alone, by engines."""
        return self._form("engines", scenario.collective).seconds(self._scale(scenario))

    def pair(self, scenario: Scenario, choice: Choice) -> float:
        """Seconds of both by a strategy."""
        check_choice(choice, scenario.collective, self.platform)
        total, grid = self.platform.require_device().units, self._grid(scenario.gemm)
        mine = total - (choice.units or 0) if choice.masks else total
        form = self._form(self._shape(scenario, choice), scenario.collective)
        units = None
        if not choice.by_engines:
            units = comm_units(scenario.collective, choice, self.platform)
        scale = self._scale(scenario)
        return form.seconds(scale, grid=grid, grid_units=mine, units=units)

    def _shape(self, scenario: Scenario, choice: Choice) -> str:
        if choice.by_engines or choice.strategy == "serial":
            return "dma" if choice.by_engines else "serial"
        first = launches_comm_first(scenario, choice, self.platform)
        return "priority" if first else "concurrent"

    def _scale(self, scenario: Scenario) -> float:
        return scenario.nbytes / self.base

    def _grid(self, gemm: Gemm) -> Grid:
        return self.rule.grid(gemm)

    def _form(self, shape: str, collective: str) -> Prepared:
        found = self._forms.get((shape, collective))
        if found is None:
            found = Prepared(self._schedule(shape, collective), self.platform)
            self._forms[shape, collective] = found
        return found

    def _schedule(self, shape: str, collective: str) -> Schedule:
        scenario = Scenario("", Gemm(16384, 16384, 64), collective, self.base)
        match shape:
            case "compute":
                return compute_alone(scenario, self.platform)
            case "comm":
                return comm_alone(scenario, self.platform)
            case "engines":
                return engine_collective(scenario, self.platform)
            case _:
                return pair_schedule(scenario, Choice(shape), self.platform)


@dataclass(frozen=True, slots=True)
class Priced:
    """One scenario by one strategy, with all that it is judged by."""

    scenario: Scenario
    choice: Choice
    compute: float
    comm: float
    seconds: float

    @property
    def serial(self) -> float:
        """One after the other, both at their best."""
        return self.compute + self.comm

    @property
    def ideal(self) -> float:
        """Side by side, neither slowed."""
        return max(self.compute, self.comm)

    @property
    def speedup(self) -> float:
        """Over one after the other."""
        return self.serial / self.seconds

    @property
    def percent_of_ideal(self) -> float:
        """The share of the possible gain that is realised (arXiv 2412.14335)."""
        return 100 * (self.speedup - 1) / (self.serial / self.ideal - 1)

    @property
    def kind(self) -> str:
        """Which of the two is longer: G-long, C-long, or GC-equal within 15 %."""
        if self.compute > 1.15 * self.comm:
            return "G-long"
        return "C-long" if self.comm > 1.15 * self.compute else "GC-equal"


def price_scenario(
    scenario: Scenario, pricer: Pricer, strategies: Iterable[str] = STRATEGIES
) -> list[Priced]:
    """The scenario by each strategy, masks as the published rule chooses them."""
    compute, comm = pricer.compute(scenario.gemm), pricer.comm(scenario)
    choices = {strategy: Choice(strategy) for strategy in strategies}
    if masking := [name for name, choice in choices.items() if choice.masks]:
        choices |= pricer.rule.masks_for(scenario, masking)
    return [
        Priced(scenario, choice, compute, comm, pricer.pair(scenario, choice))
        for choice in choices.values()
    ]
