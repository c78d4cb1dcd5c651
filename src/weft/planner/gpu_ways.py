"""The ways of a collective on devices with many units: who moves it, on what, beside what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil
from typing import TYPE_CHECKING

from weft.c3 import STRATEGIES as BESIDE
from weft.c3.strategies import BY_ENGINES, COLLECTIVES
from weft.collectives import ENGINE_FEATURES, KINDS, algorithms, engine_algorithms
from weft.cost.price import Price
from weft.errors import WeftError
from weft.planner.beside import slow_down
from weft.planner.coded_ways import coded_ways
from weft.planner.pair_effects import (
    BOUNDS,
    Effect,
    Node,
    PairPrice,
    effect,
    pair_prices,
)
from weft.planner.prices import SIMULATED_RANGE, ranged, seconds_by
from weft.planner.ways import OCCUPANCY, SLICES, Way, refused
from weft.simulator import collective_units
from weft.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.hardware import Device, Platform
    from weft.planner.plan import Alternative, Limits, Settings
    from weft.planner.prices import Prices
    from weft.planner.ways import Pair

_FUSED = ("all_to_all", "all_reduce", "reduce_scatter")
_FED = ("all_gather", "all_to_all")  # by algorithms of engines
_SMALL = 32 << 20  # bytes up to which how engines are fed matters (arXiv 2511.06605)
_ALGORITHMS = ("direct", "ring", "tree", "binomial", "halving-doubling", "scatter-allgather")
_WORTH = 0.95  # what another algorithm must be below to be worth leaving the library


@dataclass(frozen=True)
class GpuWays:
    """Lists the ways of pairs on one platform; ``simulated`` prices pairs by the simulator."""

    platform: Platform
    prices: Prices
    limits: Limits
    simulated: bool

    @cached_property
    def device(self) -> Device:
        """What every rank is."""
        return self.platform.require_device()

    def base(self, pair: Pair) -> Way:
        """Give what torch does by itself: the library's kernel on a stream of its own."""
        return self._beside_units(pair, "concurrent", self._priced(pair).get("concurrent"))

    def of(self, pair: Pair) -> Iterator[Way | Alternative]:
        """List every way, and of what cannot be done here why."""
        alone = self.prices.collective_price(pair.what, pair.ranks)
        priced = self._priced(pair)
        serial = priced["serial"].seconds if priced else None
        yield Way("serial", alone, serial=True, why="nothing runs beside it", pair=serial)
        for strategy in BESIDE[1:]:
            yield self._beside(pair, strategy, priced.get(strategy))
        if priced:  # others have no price beside this product to be compared with
            return
        yield from self._by_engines(pair)
        yield from self._by_algorithm(pair, alone)
        yield self._fused(pair, alone)
        base = self.base(pair)
        for way in coded_ways(pair, self.prices, self.limits):
            if isinstance(way, Way):  # codecs and copies run beside kernels as the library does
                yield replace(way, beside=base.beside, compute=base.compute)
            else:
                yield way

    def node(self, pair: Pair) -> Platform | None:
        """Give the part of a node that a group is in; None where it spans nodes."""
        levels = self.prices.levels(pair.ranks)
        inner = self.platform.node_levels
        if any(level.size > 1 for level in levels[inner:]):
            return None
        used = tuple(level for level in levels[:inner] if level.size > 1)
        return replace(self.platform, levels=used, node_levels=len(used), sources={})

    def _priced(self, pair: Pair) -> dict[str, PairPrice]:
        """Price the pair itself where one product is all that runs beside the collective."""
        machine = self.node(pair)
        if machine is None or pair.gemm is None:
            return {}
        return pair_prices(Node(machine), pair.what, pair.gemm, simulated=self.simulated)

    def _beside(self, pair: Pair, strategy: str, priced: PairPrice | None) -> Way | Alternative:
        if strategy in BY_ENGINES:
            return self._beside_engines(pair, strategy, priced)
        return self._beside_units(pair, strategy, priced)

    def _beside_units(self, pair: Pair, strategy: str, priced: PairPrice | None) -> Way:
        alone, why = self.prices.collective_price(pair.what, pair.ranks), ""
        try:
            found = priced.effect if priced else self._effect(pair, strategy)
        except WeftError as error:
            found = self._by_units(pair, alone.seconds)
            why = f"{error}, so priced by the units it holds"
        return Way(
            strategy,
            alone,
            found.comm,
            found.compute,
            settings=_settings(strategy, found.units),
            why=why,
            pair=priced.seconds if priced else None,
        )

    def _beside_engines(
        self, pair: Pair, strategy: str, priced: PairPrice | None
    ) -> Way | Alternative:
        if self.node(pair) is None:
            why = "engines reach the memory of one node, its ranks are on several"
            return refused(strategy, why)
        kind = pair.what.kind
        known = kind in COLLECTIVES or self.device.dma is None
        if known and (why := self.device.engine_refusal(kind)):
            return refused(strategy, why)
        needed = self._engines(len(pair.ranks) - 1 + (kind == "all_to_all"))
        if self.limits.engines is not None and self.limits.engines < needed:
            return refused(strategy, f"needs {needed} engines, {self.limits.engines} are allowed")
        try:
            found = priced.effect if priced else self._effect(pair, strategy)
        except WeftError as error:
            return refused(strategy, str(error))
        if strategy.endswith("partition") and not found.units:
            return refused(strategy, "a mask would gain nothing: memory has room for both")
        adds = ", sums stay on units" if "reduce" in pair.what.kind else ""
        return Way(
            strategy,
            self.prices.collective_price(pair.what, pair.ranks),
            found.comm,
            found.compute,
            settings={"engines": needed, **_settings(strategy, found.units)},
            why=f"engines leave the units to kernels{adds}",
            pair=priced.seconds if priced else None,
        )

    def _engines(self, transfers: int) -> int:
        """Return how many engines carry so many transfers: those of the device, or one for each."""
        return min(transfers, self.device.require_dma().num_engines)

    def _effect(self, pair: Pair, strategy: str) -> Effect:
        """Change what the library does to kernels as pairs do that these kernels stand for.

        Nothing is faster than by itself. What is launched behind kernels, or before them, runs
        beside them alike.
        """
        library = slow_down(self.platform, pair.what.kind, pair.by_memory)
        if strategy in ("concurrent", "priority"):
            return Effect(1.0, library)
        machine = self.node(pair)
        if machine is None:
            raise WeftError("its ranks are on several nodes")
        node, what = Node(machine), pair.what
        found = [
            effect(node, what.kind, what.nbytes, strategy, bound, simulated=self.simulated)
            for bound in BOUNDS
        ]
        shares = (1 - pair.by_memory, pair.by_memory)
        comm = sum(share * each.comm for share, each in zip(shares, found, strict=True))
        compute = sum(share * each.compute for share, each in zip(shares, found, strict=True))
        units = found[pair.by_memory > 0.5].units
        return Effect(max(1.0, comm), max(1.0, library * compute), units)

    def _by_units(self, pair: Pair, seconds: float) -> Effect:
        """Mask a collective between nodes: the units that it holds are gone from kernels.

        A port between nodes is filled by fewer units than the links inside; a mask gives no more.
        """
        kind, grain = pair.what.kind, self.device.unit_grain
        rate = pair.what.nbytes / max(seconds, 1e-9)
        needed = ceil(rate / self.device.unit_copy_rate / grain) * grain
        units = min(collective_units(self.platform, kind), max(grain, needed))
        return Effect(1.0, slow_down(self.platform, kind, pair.by_memory, units), units)

    def _by_engines(self, pair: Pair) -> Iterator[Way | Alternative]:
        """Ways to feed engines for messages so small that feeding them is what takes time."""
        node, what = self.node(pair), pair.what
        if node is None or what.kind not in _FED or what.nbytes > _SMALL:
            return
        if self.device.engine_refusal(what.kind):  # told beside other ways already
            return
        can = engine_algorithms(what.kind, self.device)
        for name in can:
            price = _algorithm_price(Node(node), what.kind, name, what.nbytes)
            transfers = 1 if "b2b" in ENGINE_FEATURES[name] else len(pair.ranks) - 1
            engines = self._engines(transfers)
            fits = self.limits.engines is None or engines <= self.limits.engines
            if price is not None and fits:
                settings: Settings = {"algorithm": name, "engines": engines}
                why = f"engines, {format_time(price.seconds)} by {name}"
                yield Way("dma", price, settings=settings, why=why)
        others = [n for n in algorithms(what.kind) if n in ENGINE_FEATURES and n not in can]
        if others:
            needed = tuple(dict.fromkeys(each for name in others for each in ENGINE_FEATURES[name]))
            yield refused("dma", f"{self.device.feature_refusal(needed)}: {', '.join(others)}")

    def _by_algorithm(self, pair: Pair, alone: Price) -> Iterator[Way]:
        """Other algorithms of units, where they are clearly faster than what the library takes."""
        node, what = self.node(pair), pair.what
        if node is None or alone.model != "simulated":  # what was measured is no peer of a model
            return
        base = self._beside_units(pair, "concurrent", None)
        known = algorithms(what.kind) if what.kind in KINDS else ()
        for name in (each for each in _ALGORITHMS if each in known):
            price = _algorithm_price(Node(node), what.kind, name, what.nbytes)
            if price is not None and price.seconds < _WORTH * alone.seconds:
                yield replace(base, alone=price, settings={"algorithm": name})

    def _fused(self, pair: Pair, alone: Price) -> Way | Alternative:
        if pair.what.kind not in _FUSED:
            return refused("fused", f"no fused operator ends in a {pair.what.kind}")
        if not pair.makers:
            return refused("fused", "no lookup or product right before it makes all its input")
        name = f"{pair.made_by} + {pair.what.kind}"
        return Way(
            "fused",
            alone,
            slices=SLICES,
            producer=(1 + OCCUPANCY) / 2,
            settings={"fused": name},
            why=f"slices of {pair.made_by} leave while it computes the next",
        )


def _settings(strategy: str, units: int | None) -> dict[str, str | int | float]:
    found: dict[str, str | int | float] = {}
    if "priority" in strategy:
        found["priority"] = 1
    if "partition" in strategy and units is not None:
        found["units"] = units
    return found


@lru_cache(maxsize=4096)
def _algorithm_price(node: Node, kind: str, name: str, nbytes: int) -> Price | None:
    seconds = seconds_by(node.machine, kind, name, nbytes)
    return None if seconds is None else ranged(seconds, SIMULATED_RANGE, f"{name}, simulated")
