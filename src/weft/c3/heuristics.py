"""What a runtime can decide from static sizes, without simulating anything.

The published rules (arXiv 2412.14335) are to launch the kernel of fewer workgroups first, and to
look up what each side takes on fewer units and give the collective the k units for which the
slower of the two is fastest. ``published`` does that. ``choose`` adds to the table what the two
do to each other while both run: a few lines of arithmetic on sizes and the platform's numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from weft.c3.sides import CommSide, GemmSide, comm_side
from weft.c3.strategies import (
    STRATEGIES,
    Choice,
    check_choice,
    grid_of,
    launches_comm_first,
    masks,
)
from weft.errors import UsageError
from weft.simulator import byte_weight, collective_units

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from weft.c3.scenarios import Gemm, Scenario
    from weft.cost import Grid
    from weft.hardware import Device, Platform


T = TypeVar("T")


class Beside(NamedTuple):
    """Seconds of a GEMM and of a collective while both run, of the collective without it.

    The collective begins ``lead`` seconds behind.
    """

    gemm: float
    comm: float
    alone: float
    lead: float


@dataclass
class Rule:
    """The tables of one platform."""

    platform: Platform
    device: Device = field(init=False)
    masks: tuple[int, ...] = field(init=False)
    few: int = field(init=False)  # units of a kernel that only adds up
    _grids: dict[Gemm, Grid] = field(default_factory=dict)
    _gemms: dict[tuple[Gemm, int], GemmSide] = field(default_factory=dict)
    _comms: dict[tuple[str, bool], CommSide] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = self.platform.require_device()
        self.masks = masks(self.device)
        self.few = collective_units(self.platform)

    def choose(self, scenario: Scenario) -> Choice:
        """The strategy that should be fastest; of equals the one that asks for least."""
        options = [(self.estimate(scenario, choice), choice) for choice in self.choices(scenario)]
        return _first_of_best(options)

    def choices(self, scenario: Scenario) -> Iterator[Choice]:
        """Every strategy that applies, with every mask; what asks for less stands first."""
        for strategy in STRATEGIES:
            plain = Choice(strategy)
            try:
                check_choice(plain, scenario.collective, self.platform)
            except UsageError:
                continue
            if plain.masks:
                yield from (Choice(strategy, units) for units in self.masks)
            else:
                yield plain

    def masks_for(self, scenario: Scenario, strategies: Iterable[str]) -> dict[str, Choice]:
        """Each strategy with the units for which it should be fastest.

        The order of launches hardly changes which mask is best.
        """
        best: dict[bool, int] = {}
        found = {}
        for strategy in strategies:
            engines = Choice(strategy).by_engines
            if engines not in best:
                name = "dma+partition" if engines else "partition"
                sizes = self._engine_masks(scenario) if engines else self.masks
                options = [(self.estimate(scenario, Choice(name, k)), k) for k in sizes]
                best[engines] = _first_of_best(options)
            found[strategy] = Choice(strategy, best[engines])
        return found

    def _engine_masks(self, scenario: Scenario) -> tuple[int, ...]:
        """Engines gain by masks only where memory is short or something is added up."""
        side = self.gemm(scenario.gemm, 0)
        short = side.memory_rate > 0.5 * self.device.memory_rate
        adds = self.comm(scenario.collective, by_engines=True).adds
        return (0, *self.masks) if short or adds else (0,)

    def published(self, scenario: Scenario) -> Choice:
        """Units by the published rule: the slower of the two alone is fastest."""

        def slower(units: int) -> float:
            alone = self.gemm(scenario.gemm, units).seconds
            return max(alone, self.comm_seconds(scenario, Choice("partition", units)))

        return Choice("partition", min(self.masks, key=slower))

    def grid(self, gemm: Gemm) -> Grid:
        """The tiles of a GEMM here."""
        found = self._grids.get(gemm)
        if found is None:
            found = self._grids[gemm] = grid_of(gemm, self.device)
        return found

    def gemm(self, gemm: Gemm, lost: int) -> GemmSide:
        """The GEMM when ``lost`` units are taken from it."""
        found = self._gemms.get((gemm, lost))
        if found is None:
            units = max(1, self.device.units - lost)
            found = GemmSide.of(self.grid(gemm), units, self.device)
            self._gemms[gemm, lost] = found
        return found

    def traffic(self, gemm: Gemm, units: int) -> float:
        """Bytes that the GEMM asks of memory on so many units."""
        return self.gemm(gemm, self.device.units - units).traffic

    def comm(self, kind: str, *, by_engines: bool) -> CommSide:
        """The collective, by units or by engines."""
        found = self._comms.get((kind, by_engines))
        if found is None:
            found = self._comms[kind, by_engines] = comm_side(kind, self.platform, by_engines)
        return found

    def comm_seconds(self, scenario: Scenario, choice: Choice) -> float:
        """Seconds of the collective alone: links or units, whichever are slower, and sums."""
        side = self.comm(scenario.collective, by_engines=choice.by_engines)
        return side.seconds(scenario.nbytes, side.units(choice.units))

    def estimate(self, scenario: Scenario, choice: Choice) -> float:
        """Seconds of both: as long as both run each at its rate, then what is left alone."""
        full = self.gemm(scenario.gemm, 0)
        comm = self.comm(scenario.collective, by_engines=choice.by_engines)
        units = comm.units(choice.units)
        fixed = comm.fixed(scenario.nbytes)
        if choice.strategy == "serial":
            alone = comm.seconds(scenario.nbytes, units)
            return fixed.launch + full.seconds + fixed.before + alone + fixed.after
        both = self.beside(scenario, choice)
        rest = self.gemm(scenario.gemm, choice.units or 0) if choice.masks else full
        comm_first = launches_comm_first(choice, units, full.tiles)
        return fixed.launch + _overlapped(
            (both.gemm, rest.seconds), (both.comm, both.alone), both.lead, comm_first=comm_first
        )

    def beside(self, scenario: Scenario, choice: Choice) -> Beside:
        """Each of the two while the other runs, and how much later the collective begins."""
        comm = self.comm(scenario.collective, by_engines=choice.by_engines)
        units = comm.units(choice.units)
        alone = comm.seconds(scenario.nbytes, units)
        fixed = comm.fixed(scenario.nbytes)
        held = choice.units or 0 if choice.masks or choice.by_engines else units
        side = self.gemm(scenario.gemm, held)
        slow_gemm, slow_comm = self._together(comm, choice, side, units)
        gemm_seconds = side.seconds * slow_gemm
        late = self._late(scenario, choice, units) * self.gemm(scenario.gemm, 0).seconds
        lead = max(late, fixed.before)
        copied = lead + alone * comm.before_sums * slow_comm
        alone += fixed.after + self._reduction_wait(scenario, choice, gemm_seconds, copied)
        return Beside(gemm_seconds, alone * slow_comm, alone, lead)

    def _together(
        self, comm: CommSide, choice: Choice, side: GemmSide, units: int
    ) -> tuple[float, float]:
        """By how much the GEMM and the collective are slowed while both run."""
        memory = self.device.memory_rate
        wanted, alone = side.memory_rate, comm.rate(units, 0.0, 0.0)
        inner = side.inner_rate / self.device.kernels.l2_rate
        free = comm.rate(units, wanted / memory, inner)
        if wanted + comm.passes * free <= memory:
            return 1.0, alone / free
        weight = byte_weight(self.platform, self.device.units - (choice.units or 0))
        level = memory / (weight + comm.passes * comm.peers)
        got, rate = min(wanted, weight * level), min(free, comm.peers * level)
        if got == wanted:  # the collective has what the GEMM leaves
            rate = min(free, (memory - got) / comm.passes)
        got = min(wanted, memory - comm.passes * rate)
        return wanted / got, alone / rate

    def _late(self, scenario: Scenario, choice: Choice, units: int) -> float:
        """The part of the GEMM that has passed before the collective's workgroups are admitted."""
        if choice.strategy != "concurrent":
            return 0.0
        grid, total = self.grid(scenario.gemm), self.device.units
        at_once = total * grid.slots
        free_from = grid.tiles - (at_once - units)
        if free_from <= 0:
            return 0.0
        share = self.device.kernels.dispatch_share
        ended = min(free_from, units / share if share else grid.tiles)
        return min(1.0, ceil(ended / total) / ceil(grid.tiles / total))

    def _reduction_wait(
        self, scenario: Scenario, choice: Choice, gemm: float, copied: float
    ) -> float:
        """A kernel in the midst of copies waits for the wave of the GEMM that runs to end."""
        comm = self.comm(scenario.collective, by_engines=choice.by_engines)
        if not choice.by_engines or not comm.adds or copied >= gemm:
            return 0.0
        grid, lost = self.grid(scenario.gemm), choice.units or 0
        units = self.device.units - lost
        left = grid.tiles * (1 - copied / gemm)
        if lost >= self.few or left <= units * grid.slots - self.few:
            return 0.0
        wave = gemm / ceil(grid.tiles / units)
        return ceil(copied / wave) * wave - copied


def _first_of_best(options: list[tuple[float, T]]) -> T:
    """The first that is as good as the best: a thousandth is less than estimates are worth."""
    best = min(seconds for seconds, _ in options)
    return next(option for seconds, option in options if seconds <= 1.001 * best)


def _overlapped(
    gemm: tuple[float, float], comm: tuple[float, float], lead: float, *, comm_first: bool
) -> float:
    """Seconds of both, each slowed while both run, one ``lead`` behind the other.

    Of each side: seconds beside the other, seconds without it.
    """
    left_gemm = 1.0 if comm_first else max(0.0, 1 - lead / gemm[1])
    left_comm = max(0.0, 1 - lead / comm[1]) if comm_first else 1.0
    both = min(left_gemm * gemm[0], left_comm * comm[0])
    left_gemm -= both / gemm[0]
    left_comm -= both / comm[0]
    return lead + both + max(left_gemm * gemm[1], left_comm * comm[1])
