"""Candidates on devices with many units: who moves a collective, and what it takes from kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil
from typing import TYPE_CHECKING

from weft.c3 import Gemm, Pricer, Scenario
from weft.c3.strategies import COLLECTIVES, masks
from weft.collectives import ENGINE_FEATURES, KINDS, algorithms, engine_algorithms
from weft.collectives.catalogue import REDUCING
from weft.cost.bus import bus_factor
from weft.cost.price import Price
from weft.planner.candidates import OCCUPANCY, SLICES, Candidate, infeasible
from weft.planner.coded_candidates import coded_candidates
from weft.planner.prices import SIMULATED_RANGE, ranged, seconds_by
from weft.simulator import collective_units, unit_rate
from weft.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.hardware import Device, Platform
    from weft.planner.candidates import CollectiveGroup
    from weft.planner.plan import Alternative, Limits, Settings
    from weft.planner.prices import Prices

FUSED = ("all_to_all", "all_reduce", "reduce_scatter")
_FED = ("all_gather", "all_to_all")  # by algorithms of engines
_SMALL = 32 << 20  # bytes up to which how engines are fed matters (arXiv 2511.06605)
_SMALLEST = 64 << 10  # bytes; below, launches are all there is
_ALGORITHMS = ("direct", "ring", "tree", "binomial", "halving-doubling", "scatter-allgather")
_WORTH = 0.95  # what another algorithm must be below to be worth leaving the library


@dataclass(frozen=True)
class GpuCandidates:
    """Lists the candidates of collectives on one platform."""

    platform: Platform
    prices: Prices
    limits: Limits

    @cached_property
    def device(self) -> Device:
        """What every rank is."""
        return self.platform.require_device()

    def base(self, group: CollectiveGroup) -> Candidate:
        """Return what torch does by itself: the library's kernel on a stream of its own."""
        return Candidate("concurrent", self._alone(group))

    def of(self, group: CollectiveGroup) -> Iterator[Candidate | Alternative]:
        """List every candidate, and what is infeasible here with the reason."""
        alone = self._alone(group)
        yield Candidate("serial", alone, exclusive=True, why="nothing runs next to it")
        yield self.base(group)
        why = "its kernel gets every slot that comes free"
        yield Candidate("priority", alone, settings={"priority": 1}, why=why)
        yield from self._partitioned(group, alone)
        yield from self._by_engines(group, alone)
        yield from self._fed(group)
        yield from self._by_algorithm(group, alone)
        yield self._fused(group, alone)
        yield from coded_candidates(group, self.prices, self.limits)

    def _alone(self, group: CollectiveGroup) -> Price:
        return self.prices.collective_price(group.what, group.ranks)

    def node(self, group: CollectiveGroup) -> Platform | None:
        """Return the part of a node that a group is in; None where it spans nodes."""
        levels = self.prices.levels(group.ranks)
        inner = self.platform.node_levels
        if any(level.size > 1 for level in levels[inner:]):
            return None
        used = tuple(level for level in levels[:inner] if level.size > 1)
        return replace(self.platform, levels=used, node_levels=len(used), sources={})

    def _partitioned(
        self, group: CollectiveGroup, alone: Price
    ) -> Iterator[Candidate | Alternative]:
        """Confine the library's kernel to fewer units; it is slower when they fill no link."""
        filled = collective_units(self.platform, group.what.kind)
        fewer = [units for units in masks(self.device) if units < filled]
        if not fewer:
            why = f"its kernel takes {filled} units, no more than the smallest mask"
            yield infeasible("partition", why)
            yield infeasible("priority+partition", why)
            return
        needed = self._needed_units(group, alone.seconds, filled)
        for units in fewer:
            price = _scaled(alone, max(1.0, needed / units))
            why = f"leaves {self.device.units - units} of {self.device.units} units to kernels"
            settings: Settings = {"units": units}
            yield Candidate("partition", price, units, settings=settings, why=why)
            settings = {"priority": 1, "units": units}
            yield Candidate("priority+partition", price, units, settings=settings, why=why)

    def _needed_units(self, group: CollectiveGroup, seconds: float, filled: int) -> int:
        """Return the units that a collective needs: a port between nodes is filled by fewer."""
        if self.node(group) is not None:
            return filled
        count, kind, grain = len(group.ranks), group.what.kind, self.device.unit_grain
        crossing = bus_factor(kind, count) if kind in COLLECTIVES else 1.0
        rate = crossing * group.what.nbytes / max(seconds, 1e-9)
        return min(filled, max(grain, ceil(rate / unit_rate(self.platform, kind) / grain) * grain))

    def _by_engines(
        self, group: CollectiveGroup, alone: Price
    ) -> Iterator[Candidate | Alternative]:
        """Move the bytes by copy engines, which leave the units to kernels."""
        names, kind = ("dma", "dma+partition"), group.what.kind
        if why := self._no_engines(group):
            yield from (infeasible(name, why) for name in names)
            return
        node = self.node(group)
        assert node is not None
        price = _scaled(alone, _engine_ratio(NodeKey(node), kind, group.what.nbytes))
        sums = collective_units(self.platform) if kind in REDUCING else 0
        settings: Settings = {"engines": self._num_engines(group)}
        why = f"engines leave the units to kernels{', sums stay on units' if sums else ''}"
        yield Candidate("dma", price, sums, settings=settings, why=why)
        for units in masks(self.device)[:2]:
            masked = {**settings, "units": units}
            told = f"{why}; {units} units fewer crowd the cache less"
            yield Candidate("dma+partition", price, max(units, sums), settings=masked, why=told)

    def _no_engines(self, group: CollectiveGroup) -> str:
        """Return why engines cannot carry a group out, if they cannot."""
        kind, allowed = group.what.kind, self.limits.engines
        if self.node(group) is None:
            return "engines reach the memory of one node, its ranks are on several"
        if kind not in COLLECTIVES and self.device.dma is not None:
            return f"engines do not carry out {kind}"
        if why := self.device.engine_refusal(kind):
            return why
        needed = self._num_engines(group)
        if allowed is not None and allowed < needed:
            return f"needs {needed} engines, {allowed} are allowed"
        return ""

    def _num_engines(self, group: CollectiveGroup) -> int:
        transfers = len(group.ranks) - 1 + (group.what.kind == "all_to_all")
        return self._engines(transfers)

    def _engines(self, transfers: int) -> int:
        """Return how many engines carry so many transfers: those of the device, or one for each."""
        return min(transfers, self.device.require_dma().num_engines)

    def _fed(self, group: CollectiveGroup) -> Iterator[Candidate | Alternative]:
        """Feed engines in ways that pay for messages so small that feeding is what takes time."""
        node, what = self.node(group), group.what
        if node is None or what.kind not in _FED or what.nbytes > _SMALL:
            return
        if self.device.engine_refusal(what.kind):  # named among other strategies already
            return
        can = engine_algorithms(what.kind, self.device)
        for name in can:
            price = _algorithm_price(NodeKey(node), what.kind, name, what.nbytes)
            transfers = 1 if "b2b" in ENGINE_FEATURES[name] else len(group.ranks) - 1
            engines = self._engines(transfers)
            fits = self.limits.engines is None or engines <= self.limits.engines
            if price is not None and fits:
                settings: Settings = {"algorithm": name, "engines": engines}
                why = f"engines, {format_time(price.seconds)} by {name}"
                yield Candidate("dma", price, 0, settings=settings, why=why)
        others = [n for n in algorithms(what.kind) if n in ENGINE_FEATURES and n not in can]
        if others:
            needed = tuple(dict.fromkeys(each for name in others for each in ENGINE_FEATURES[name]))
            why = f"{self.device.feature_refusal(needed)}: {', '.join(others)}"
            yield infeasible("dma", why)

    def _by_algorithm(self, group: CollectiveGroup, alone: Price) -> Iterator[Candidate]:
        """Other algorithms of units, where they are clearly faster than what the library takes."""
        node, what = self.node(group), group.what
        if node is None or alone.model != "simulated":  # what was measured is no peer of a model
            return
        known = algorithms(what.kind) if what.kind in KINDS else ()
        for name in (each for each in _ALGORITHMS if each in known):
            price = _algorithm_price(NodeKey(node), what.kind, name, what.nbytes)
            if price is not None and price.seconds < _WORTH * alone.seconds:
                yield Candidate("concurrent", price, settings={"algorithm": name})

    def _fused(self, group: CollectiveGroup, alone: Price) -> Candidate | Alternative:
        if group.what.kind not in FUSED:
            return infeasible("fused", f"no fused operator ends in {group.what.kind}")
        if not group.producers:
            return infeasible(
                "fused", "no lookup or product right before it produces all its input"
            )
        name = f"{group.produced_by} + {group.what.kind}"
        return Candidate(
            "fused",
            alone,
            slices=SLICES,
            producer=(1 + OCCUPANCY) / 2,
            settings={"fused": name},
            why=f"slices of {group.produced_by} leave while it computes the next",
        )


class NodeKey:
    """A platform of one node, equal by its name, ranks and device: a key of caches."""

    def __init__(self, machine: Platform) -> None:
        self.machine = machine
        self._key = machine.name, machine.levels

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NodeKey) or self._key != other._key:
            return False
        mine, theirs = self.machine.device, other.machine.device
        return mine is theirs or mine == theirs


def _scaled(price: Price, times: float) -> Price:
    return replace(
        price, seconds=times * price.seconds, low=times * price.low, high=times * price.high
    )


@lru_cache(maxsize=64)
def _pricer(node: NodeKey) -> Pricer:
    return Pricer(node.machine)


@lru_cache(maxsize=4096)
def _engine_ratio(node: NodeKey, kind: str, nbytes: int) -> float:
    """Return how many times as long engines take alone as a kernel of the same collective.

    Both are simulated; the library's own price, often measured, is scaled by it.
    """
    pricer, ranks = _pricer(node), node.machine.num_ranks
    size = max(_SMALLEST, nbytes) // (16 * ranks) * (16 * ranks)
    scenario = Scenario("", Gemm(1024, 1024, 1024, pricer.dtype), kind, max(size, 16 * ranks))
    return pricer.engines(scenario) / pricer.comm(scenario)


@lru_cache(maxsize=4096)
def _algorithm_price(node: NodeKey, kind: str, name: str, nbytes: int) -> Price | None:
    seconds = seconds_by(node.machine, kind, name, nbytes)
    return None if seconds is None else ranged(seconds, SIMULATED_RANGE, f"{name}, simulated")
