"""Pairs priced by the simulator, ten thousand of them in seconds.

What is asked again and again is prepared once for each form of a schedule: which streams and
engines there are, and in which order they are launched. Sizes, tiles and units are then put in
place. The answers are those of ``simulate`` on ``pair_schedule``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from weft.c3.scenarios import Gemm, Scenario, class_of, percent_of_ideal
from weft.c3.strategies import (
    COMPUTE,
    STRATEGIES,
    check_choice,
    comm_alone,
    comm_units,
    compute_alone,
    engine_collective,
    grid_of,
    launches_comm_first,
    masks,
    pair_schedule,
)
from weft.collectives.parts import divided
from weft.cost import Grid
from weft.errors import UsageError
from weft.hardware import Device, Platform
from weft.schedule import CommandKind, Schedule
from weft.schedule.strategy import Strategy
from weft.simulator import Prepared, collective_units, simulate
from weft.units import MIB, format_size

_EQUAL = 1.001  # times the least up to which choices count as equal: the one that asks least
_UNIT = 1 << 20  # bytes for each rank of the schedule that is prepared


@dataclass
class Pricer:
    """Prices pairs on one platform."""

    platform: Platform
    _forms: dict[tuple[str, str], Prepared] = field(default_factory=dict)
    _alone: dict[Gemm, float] = field(default_factory=dict)
    _grids: dict[Gemm, Grid] = field(default_factory=dict)
    _traffic: dict[tuple[Gemm, int], float] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """What every rank is."""
        return self.platform.require_device()

    def grid(self, gemm: Gemm) -> Grid:
        """Return the tiles of a GEMM."""
        if gemm not in self._grids:
            self._grids[gemm] = grid_of(gemm, self.device)
        return self._grids[gemm]

    def traffic(self, gemm: Gemm, units: int) -> float:
        """Return the bytes that a GEMM asks of memory on a number of units."""
        if (gemm, units) not in self._traffic:
            found = self.grid(gemm).traffic_on(units, self.device)
            self._traffic[gemm, units] = found
        return self._traffic[gemm, units]

    def choices(self, scenario: Scenario) -> list[Strategy]:
        """Return every strategy that applies, with every mask; what asks for less stands first."""
        found = []
        for strategy in STRATEGIES:
            unmasked = Strategy(strategy)
            try:
                check_choice(unmasked, scenario.collective, self.platform)
            except UsageError:
                continue
            found += self._masked(unmasked)
        return found

    def _masked(self, unmasked: Strategy) -> list[Strategy]:
        sizes = masks(self.device) if unmasked.kind.masks else ()
        return [replace(unmasked, units=units) for units in sizes] or [unmasked]

    def best(self, scenario: Scenario, choices: Sequence[Strategy] | None = None) -> Strategy:
        """Return the fastest of some choices, by default of all; of equals the first."""
        found = [(self.pair(scenario, each), each) for each in choices or self.choices(scenario)]
        least = min(seconds for seconds, _ in found)
        # Choices are listed by what they ask for; a difference of 0.1 % is no reason to mask
        # units.
        return next(each for seconds, each in found if seconds <= _EQUAL * least)

    @property
    def base(self) -> int:
        """The bytes of the collective that stands in prepared schedules."""
        return _UNIT * self.platform.num_ranks

    @property
    def dtype(self) -> str:
        """What a GEMM that stands for others is multiplied in: bf16, or what the device has."""
        flops = self.platform.require_device().flops
        return next((each for each in ("bf16", "fp16", *flops) if each in flops), "bf16")

    def compute(self, gemm: Gemm) -> float:
        """Return the seconds of the GEMM alone, on all units."""
        if gemm not in self._alone:
            units = self.platform.require_device().units
            form = self._form("compute", "all_gather")
            self._alone[gemm] = form.seconds(grid=self.grid(gemm), grid_units=units)
        return self._alone[gemm]

    def comm(self, scenario: Scenario) -> float:
        """Return the seconds of the collective kernel alone, on the units that fill the links."""
        units = collective_units(self.platform, scenario.collective)
        return self._form("comm", scenario.collective).seconds(self._scale(scenario), units=units)

    def engines(self, scenario: Scenario) -> float:
        """Return the seconds of the collective alone, by engines."""
        return self._form("engines", scenario.collective).seconds(self._scale(scenario))

    def pair(self, scenario: Scenario, choice: Strategy) -> float:
        """Return the seconds of both by a strategy."""
        check_choice(choice, scenario.collective, self.platform)
        grid, total = self.grid(scenario.gemm), self.device.units
        by_units = not choice.kind.by_engines
        # A schedule is the same for all sizes but for its numbers: scale stands for bytes, the
        # grid for the GEMM, units for the launch.
        units = comm_units(scenario.collective, choice, self.platform) if by_units else None
        form = self._form(_shape(choice, units, grid), scenario.collective)
        return form.seconds(
            self._scale(scenario),
            grid=grid,
            # A mask takes its units from the GEMM, whether the collective uses all of them or not.
            grid_units=total - (choice.units or 0) if choice.kind.masks else total,
            traffic=partial(self.traffic, scenario.gemm),
            units=units,
        )

    def _scale(self, scenario: Scenario) -> float:
        return scenario.nbytes / self.base

    def _form(self, shape: str, collective: str) -> Prepared:
        found = self._forms.get((shape, collective))
        if found is None:
            found = Prepared(self._schedule(shape, collective), self.platform)
            self._forms[shape, collective] = found
        return found

    def _schedule(self, shape: str, collective: str) -> Schedule:
        # Any GEMM of many tiles will do: its tiles are replaced before each run.
        scenario = Scenario("", Gemm(16384, 16384, 64, self.dtype), collective, self.base)
        match shape:
            case "compute":
                return compute_alone(scenario, self.platform)
            case "comm":
                return comm_alone(scenario, self.platform)
            case "engines":
                return engine_collective(scenario, self.platform)
            case _:
                return pair_schedule(scenario, Strategy(shape), self.platform)


def _shape(choice: Strategy, units: int | None, grid: Grid) -> str:
    """Return the form of a schedule, masks aside: ``pair_schedule`` makes the same distinctions."""
    if choice.kind.by_engines or units is None:
        return "dma"
    if choice.kind.exclusive:
        return "serial"
    return "priority" if launches_comm_first(choice, units, grid.tiles) else "concurrent"


@dataclass(frozen=True, slots=True)
class PricedPair:
    """One scenario by one strategy, with all that it is judged by."""

    scenario: Scenario
    choice: Strategy
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
        """The share of the possible gain that is realised."""
        return percent_of_ideal(self.serial, self.ideal, self.seconds)

    @property
    def kind(self) -> str:
        """Which of the two is longer."""
        return class_of(self.compute, self.comm)

    def as_row(self) -> dict[str, Any]:
        """Return the result under the keys that ``weft c3`` has."""
        return {
            "scenario": self.scenario.name,
            "gemm": str(self.scenario.gemm),
            "tiles": self.scenario.gemm.tiles,
            "collective": self.scenario.collective,
            "nbytes": self.scenario.nbytes,
            "strategy": self.choice.name,
            "units": self.choice.units,
            "t_compute": self.compute,
            "t_comm": self.comm,
            "serial": self.serial,
            "ideal": self.ideal,
            "seconds": self.seconds,
            "speedup": self.speedup,
            "percent_of_ideal": self.percent_of_ideal,
            "class": self.kind,
            "basis": "predicted",
        }


def gemm_slowdown(scenario: Scenario, choice: Strategy, platform: Platform) -> float:
    """Return how many times as long as alone the GEMM of a pair takes."""
    seconds = []
    pair = pair_schedule(scenario, choice, platform)
    for schedule in (pair, compute_alone(scenario, platform)):
        kernel = simulate(schedule, platform).of(queue=COMPUTE, kind=CommandKind.KERNEL)
        seconds.append(float(kernel.end[0] - kernel.start[0]))
    return seconds[0] / seconds[1]


def applying(
    scenario: Scenario, asked: Sequence[str], units: int | None, platform: Platform
) -> tuple[str, ...]:
    """Return the strategies asked for, which must apply, or all that do."""
    for strategy in asked:
        masks = Strategy(strategy).kind.masks
        check_choice(
            Strategy(strategy, units=units if masks else None), scenario.collective, platform
        )
    if asked:
        return tuple(asked)
    least = Strategy("serial") if units is None else Strategy("partition", units=units)
    check_choice(least, scenario.collective, platform)
    found = []
    for strategy in STRATEGIES:
        try:
            check_choice(Strategy(strategy), scenario.collective, platform)
        except UsageError:
            continue
        found.append(strategy)
    return tuple(found)


def scenarios_of(
    gemm: Gemm, kinds: Iterable[str], sizes: Sequence[int] | None, pricer: Pricer
) -> list[Scenario]:
    """Return a GEMM with collectives; without sizes, of bytes that take as long as the GEMM."""
    found = []
    for kind in kinds:
        check_choice(Strategy("serial"), kind, pricer.platform)
        for nbytes in sizes or (_as_long(gemm, kind, pricer),):
            # Only these two may be cut into unequal chunks.
            if kind not in ("broadcast", "all_reduce"):
                divided(nbytes, pricer.platform.num_ranks, kind)
            found.append(Scenario(f"{gemm}-{kind}-{format_size(nbytes)}", gemm, kind, nbytes))
    return found


def _as_long(gemm: Gemm, kind: str, pricer: Pricer) -> int:
    # A GiB is bound by bandwidth, so seconds scale with bytes; rounded to whole MiB a rank.
    each = pricer.comm(Scenario("", gemm, kind, 1 << 30))
    step = MIB * pricer.platform.num_ranks
    return max(1, round(pricer.compute(gemm) / each * (1 << 30) / step)) * step


def price_scenario(
    scenario: Scenario,
    pricer: Pricer,
    strategies: Iterable[str] = STRATEGIES,
    *,
    units: int | None = None,
) -> list[PricedPair]:
    """Price the scenario by each strategy; masks of ``units``, or the best."""
    compute, comm = pricer.compute(scenario.gemm), pricer.comm(scenario)
    rows = []
    for strategy in strategies:
        choice = Strategy(strategy)
        if choice.kind.masks:
            given = None if units is None else [Strategy(strategy, units=units)]
            # Engines need no units, so a mask of none is a candidate there.
            sizes = (*((0,) if choice.kind.by_engines else ()), *masks(pricer.device))
            choice = pricer.best(
                scenario, given or [Strategy(strategy, units=each) for each in sizes]
            )
        rows.append(PricedPair(scenario, choice, compute, comm, pricer.pair(scenario, choice)))
    return rows
