"""The ways of a collective where a rank is a core: torch with Gloo, and what weft has there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from weft.cost.price import Price
from weft.fused.embedding_all_to_all import SLICES
from weft.planner.coded_ways import coded_ways
from weft.planner.prices import Prices
from weft.planner.ways import Way, refused
from weft.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.hardware import Platform
    from weft.planner.plan import Alternative, Limits, Settings
    from weft.planner.ways import Pair

_ONE_CORE = "a rank has one core: there are no units to share out"


@dataclass(frozen=True)
class CpuWays:
    """Lists the ways of pairs on cores."""

    platform: Platform
    prices: Prices
    limits: Limits

    @cached_property
    def weft(self) -> Prices:
        """What collectives take by weft."""
        return Prices(self.platform, library="weft")

    def base(self, pair: Pair) -> Way:
        """Give what torch does by itself."""
        alone = self.prices.collective_price(pair.what, pair.ranks)
        return Way("concurrent", alone, settings={"backend": self.prices.library})

    def of(self, pair: Pair) -> Iterator[Way | Alternative]:
        """List every way, and of what cannot be done here why."""
        base, mine = self.base(pair), self.weft.collective_price(pair.what, pair.ranks)
        yield base
        settings = {"backend": "weft", "algorithm": "auto"}
        why = f"through shared memory: {format_time(mine.seconds)} by weft"
        if self._spans(pair):
            why = f"one message a host: {format_time(mine.seconds)} by weft"
        yield Way("concurrent", mine, settings=settings, why=why)
        yield refused("serial", "everything that a rank does takes turns on its core anyway")
        for strategy in ("priority", "partition", "priority+partition", "dma+partition"):
            yield refused(strategy, _ONE_CORE)
        yield self._by_engines(mine)
        yield self._fused(pair, mine)
        yield from self._coded(pair)

    def _spans(self, pair: Pair) -> bool:
        """Whether its ranks are on several hosts."""
        levels = self.prices.levels(pair.ranks)
        return any(level.size > 1 for level in levels[self.platform.node_levels :])

    def _by_engines(self, mine: Price) -> Way | Alternative:
        """A copy engine is a thread: it needs a core that no rank has."""
        machine = self.platform.machine
        cores = machine.cores if machine is not None else self.platform.node_size
        if cores <= self.platform.node_size:
            return refused("dma", f"an engine is a thread, and {cores} cores have a rank each")
        if self.limits.engines is not None and self.limits.engines < 1:
            return refused("dma", f"needs 1 engine, {self.limits.engines} are allowed")
        settings: Settings = {"backend": "weft", "engines": 1}
        why = "an engine thread copies on a core that has no rank"
        return Way("dma", mine, settings=settings, why=why)

    def _fused(self, pair: Pair, mine: Price) -> Way | Alternative:
        """Pooled straight into the ranks that want it: what is left of an exchange is meeting."""
        if pair.what.kind != "all_to_all" or not (pair.looks_up or pair.lookups):
            return refused("fused", "weft fuses lookups in embedding tables with their exchange")
        settings = {"backend": "weft", "fused": "embedding_all_to_all"}
        why = "bags are summed straight into the memory of the ranks that want them"
        if pair.phase == "backward":
            why = "gradients are read where they lie, rows are changed as they come"
        if self._spans(pair):
            why = "what is summed is sent while the rest is summed"
        device = self.platform.require_device()
        found = [each.seconds(device, pair.phase) for each in pair.lookups]
        if not found or None in found:
            if self._spans(pair) or not self.platform.libraries:
                return refused("fused", "what its lookups take was not measured: weft calibrate")
            return Way("fused", self._exchanged(pair, mine), settings=settings, why=why)
        work = max((each for each in found if each), key=lambda each: each.seconds)
        alone = _joined(work, self._exchanged(pair, mine), overlaps=self._overlaps(pair))
        freed = tuple(
            (place[0], n)
            for place, each in zip(pair.members, pair.lookups, strict=True)
            for n in each.replaced
        )
        return Way("fused", alone, serial=True, freed=freed, settings=settings, why=why)

    def _overlaps(self, pair: Pair) -> bool:
        """Whether rows are on the wire while others are summed: forth, between hosts."""
        return self._spans(pair) and pair.phase != "backward"

    def _exchanged(self, pair: Pair, mine: Price) -> Price:
        """Give what is left of the exchange itself: inside a host, meeting and reading."""
        if self._spans(pair) or pair.phase == "backward":
            return mine
        meeting = self.weft.collective_price(replace(pair.what, nbytes=64), pair.ranks)
        return Price(meeting.seconds, meeting.low, mine.high, model="fused")

    def _coded(self, pair: Pair) -> Iterator[Way | Alternative]:
        if pair.what.kind != "broadcast":
            yield refused("compressed", "weft encodes broadcasts between hosts only")
        elif not self._spans(pair):
            yield refused("compressed", "inside a host memory is faster than any codec")
        else:
            for way in coded_ways(pair, self.weft, self.limits):
                settings = {"backend": "weft", **way.settings}
                yield replace(way, settings=settings)


def _joined(work: Price, moves: Price, *, overlaps: bool) -> Price:
    """Put computation and exchange together: in turn, or as slices that are sent meanwhile."""

    def both(one: float, other: float) -> float:
        return max(one, other) + min(one, other) / SLICES if overlaps else one + other

    return Price(
        both(work.seconds, moves.seconds),
        both(work.low, moves.low),
        both(work.high, moves.high),
        model="fused",
    )
