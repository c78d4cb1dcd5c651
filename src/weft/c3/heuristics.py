"""What a runtime can decide from static sizes, without simulating anything.

The published rules (arXiv 2412.14335) are to launch the kernel of fewer workgroups first, and to
look up what each side takes on fewer units and give the collective the k units for which the
slower of the two is fastest. ``published`` does that. ``Rule`` adds to the table what the two do
to each other while both run: a few lines of arithmetic on sizes and on the platform's numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from weft.c3.strategies import (
    REDUCTIONS,
    STRATEGIES,
    Choice,
    check_choice,
    comm_units,
    grid_of,
    launches_comm_first,
    masks,
)
from weft.errors import UsageError
from weft.simulator import byte_weight, collective_units, unit_rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.c3.scenarios import Gemm, Scenario
    from weft.cost import Grid
    from weft.hardware import Platform


@dataclass(frozen=True, slots=True)
class Side:
    """The GEMM on so many units: seconds alone, and what it asks of memory and of the L2."""

    seconds: float
    traffic: float
    inner: float


@dataclass
class Rule:
    """The tables of one platform."""

    platform: Platform
    _grids: dict[Gemm, Grid] = field(default_factory=dict)
    _sides: dict[tuple[Gemm, int], Side] = field(default_factory=dict)

    def choose(self, scenario: Scenario) -> Choice:
        """The strategy that should be fastest; of equals the one that asks for least."""
        return min(self.choices(scenario), key=lambda choice: self.estimate(scenario, choice))

    def choices(self, scenario: Scenario) -> Iterator[Choice]:
        """Every strategy that applies, with every mask; what asks for less stands first."""
        sizes = masks(self.platform.require_device())
        for strategy in STRATEGIES:
            plain = Choice(strategy)
            try:
                check_choice(plain, scenario.collective, self.platform)
            except UsageError:
                continue
            if plain.masks:
                yield from (Choice(strategy, units) for units in sizes)
            else:
                yield plain

    def masked(self, scenario: Scenario, strategy: str) -> Choice:
        """The strategy with the units for which it should be fastest, where it masks any."""
        choice = Choice(strategy)
        if not choice.masks:
            return choice
        sizes = masks(self.platform.require_device())
        options = [Choice(strategy, k) for k in ((0, *sizes) if choice.by_engines else sizes)]
        return min(options, key=lambda option: self.estimate(scenario, option))

    def published(self, scenario: Scenario) -> Choice:
        """Units by the published rule: the slower of the two alone is fastest."""

        def slower(units: int) -> float:
            alone = self.side(scenario.gemm, units).seconds
            return max(alone, self.comm(scenario, Choice("partition", units)))

        best = min(masks(self.platform.require_device()), key=slower)
        return Choice("partition", best)

    def grid(self, gemm: Gemm) -> Grid:
        """The tiles of a GEMM here."""
        found = self._grids.get(gemm)
        if found is None:
            found = self._grids[gemm] = grid_of(gemm, self.platform.require_device())
        return found

    def side(self, gemm: Gemm, lost: int) -> Side:
        """The GEMM when ``lost`` units are taken from it."""
        found = self._sides.get((gemm, lost))
        if found is None:
            device, grid = self.platform.require_device(), self.grid(gemm)
            units = device.units - lost
            traffic = float(grid.traffic(np.array([units], np.float64), device)[0])
            inner = grid.inner_traffic()
            by_memory = max(traffic / device.memory_rate, inner / device.kernels.l2_rate)
            found = Side(max(grid.seconds(units), by_memory), traffic, inner)
            self._sides[gemm, lost] = found
        return found

    def comm(self, scenario: Scenario, choice: Choice) -> float:
        """Seconds of the collective alone: links or units, whichever are slower, and sums."""
        moved = crossing_bytes(scenario, self.platform)
        seconds = moved / self._comm_rate(scenario, choice, 0.0, 0.0)
        return seconds + self._sums(scenario, choice)

    def _sums(self, scenario: Scenario, choice: Choice) -> float:
        """What adding up takes: all copies of a chunk are read from memory, by units."""
        if scenario.collective not in REDUCTIONS:
            return 0.0
        device, n = self.platform.require_device(), self.platform.num_ranks
        family = "" if choice.by_engines else scenario.collective
        units = collective_units(self.platform, family)
        if family:
            units = comm_units(family, choice, self.platform)
        rate = min(device.memory_rate / (n + 1), units * unit_rate(self.platform, family))
        return scenario.nbytes / n / rate

    def _fixed(self, scenario: Scenario, choice: Choice) -> tuple[float, float]:
        """Seconds before the collective moves, behind the launch of the GEMM, and after it."""
        device, level = self.platform.require_device(), self.platform.levels[0]
        if not choice.by_engines:
            return device.host_launch, 2 * (level.latency + device.signal)
        dma, others = device.require_dma(), self.platform.num_ranks - 1
        chunk = crossing_bytes(scenario, self.platform) / others
        before = others * (dma.doorbell + dma.control) + dma.fetch
        before += dma.start * max(1, ceil(chunk / dma.packet_bytes))
        after = dma.sync + level.latency
        if scenario.collective in REDUCTIONS:
            after += device.host_launch + device.launch + dma.sync
        return before, after

    def _reduction_wait(
        self, scenario: Scenario, choice: Choice, gemm: float, copied: float
    ) -> float:
        """A kernel in the midst of copies waits for the wave of the GEMM that runs to end."""
        if not choice.by_engines or scenario.collective not in REDUCTIONS or copied >= gemm:
            return 0.0
        device, grid = self.platform.require_device(), self.grid(scenario.gemm)
        units, need = device.units - (choice.units or 0), collective_units(self.platform)
        left = grid.tiles * (1 - copied / gemm)
        if device.units - units >= need or left <= units * grid.slots - need:
            return 0.0
        wave = gemm / ceil(grid.tiles / units)
        return ceil(copied / wave) * wave - copied

    def _comm_rate(
        self, scenario: Scenario, choice: Choice, memory_load: float, cache_load: float
    ) -> float:
        """Bytes a second over all links of a rank while computation loads memory and L2."""
        device, level = self.platform.require_device(), self.platform.levels[0]
        stretch = device.kernels.load_latency
        others = max(1, level.size - 1)
        if choice.by_engines:
            engine = device.require_dma().engine_rate / (1 + stretch * memory_load)
            return min(level.rate, others * engine)
        units = comm_units(scenario.collective, choice, self.platform)
        own = level.size / others  # its own chunk, which no link sees
        moved = units * unit_rate(self.platform, scenario.collective) / own
        return min(level.rate, moved / (1 + stretch * (memory_load + cache_load)))

    def estimate(self, scenario: Scenario, choice: Choice) -> float:
        """Seconds of both: as long as both run each at its rate, then what is left alone."""
        device, full = self.platform.require_device(), self.side(scenario.gemm, 0)
        alone = self.comm(scenario, choice)
        before, after = self._fixed(scenario, choice)
        fixed = device.host_launch + device.launch
        if choice.strategy == "serial":
            return fixed + full.seconds + before + alone + after
        side = self.side(scenario.gemm, self._lost(scenario, choice))
        rest = side if choice.masks else full
        slow_gemm, slow_comm = self._together(scenario, choice, side)
        lead = max(self._late(scenario, choice) * full.seconds, before)
        alone += after + self._reduction_wait(
            scenario, choice, side.seconds * slow_gemm, lead + self._copied(scenario, alone) * slow_comm
        )
        gemm_first = not launches_comm_first(scenario, choice, self.platform)
        # What is left of each when the other begins.
        gemm = max(0.0, 1 - lead / rest.seconds) if gemm_first else 1.0
        comm = 1.0 if gemm_first else max(0.0, 1 - lead / alone)
        both = min(gemm * side.seconds * slow_gemm, comm * alone * slow_comm)
        gemm -= both / (side.seconds * slow_gemm)
        comm -= both / (alone * slow_comm)
        return fixed + lead + both + max(gemm * rest.seconds, comm * alone)

    def _copied(self, scenario: Scenario, alone: float) -> float:
        """Of an all-reduce the first half comes before the sums, of a reduce-scatter all of it."""
        return alone / 2 if scenario.collective == "all_reduce" else alone

    def _lost(self, scenario: Scenario, choice: Choice) -> int:
        """The units that the GEMM does without while the collective runs."""
        if choice.masks or choice.by_engines:
            return choice.units or 0
        return comm_units(scenario.collective, choice, self.platform)

    def _together(self, scenario: Scenario, choice: Choice, side: Side) -> tuple[float, float]:
        """By how much the GEMM and the collective are slowed while both run."""
        device, platform = self.platform.require_device(), self.platform
        memory, others = device.memory_rate, max(1, platform.levels[0].size - 1)
        wanted = side.traffic / side.seconds
        loads = (wanted / memory, side.inner / side.seconds / device.kernels.l2_rate)
        alone = self._comm_rate(scenario, choice, 0.0, 0.0)
        rate = unhindered = self._comm_rate(scenario, choice, *loads)
        passes = 2.0 if choice.by_engines else 2.0 + device.kernels.staging
        got = wanted
        if wanted + passes * rate > memory:
            weight = byte_weight(platform, device.units - (choice.units or 0))
            level = memory / (weight + passes * others)
            got, rate = min(wanted, weight * level), min(rate, others * level)
            if got == wanted:  # the collective has what the GEMM leaves
                rate = min(unhindered, (memory - got) / passes)
            got = min(wanted, memory - passes * rate)
        return wanted / got, alone / rate

    def _late(self, scenario: Scenario, choice: Choice) -> float:
        """The part of the GEMM that has passed before the collective's workgroups are admitted."""
        device, grid = self.platform.require_device(), self.grid(scenario.gemm)
        if choice.by_engines or choice.masks or choice.strategy.startswith("priority"):
            return 0.0
        units = collective_units(self.platform, scenario.collective)
        at_once = device.units * grid.slots
        free_from = grid.tiles - (at_once - units)
        if free_from <= 0:
            return 0.0
        share = device.kernels.dispatch_share
        by_share = units / share if share else grid.tiles
        waves = ceil(min(free_from, by_share) / at_once) * grid.slots
        return min(1.0, waves / ceil(grid.tiles / device.units))


def crossing_bytes(scenario: Scenario, platform: Platform) -> float:
    """Bytes that leave the busiest rank."""
    n = platform.num_ranks
    match scenario.collective:
        case "all_reduce":
            return scenario.nbytes * 2 * (n - 1) / n
        case "broadcast":
            return scenario.nbytes * (n - 1)
        case _:
            return scenario.nbytes * (n - 1) / n
