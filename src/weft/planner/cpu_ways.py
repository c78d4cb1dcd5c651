"""The ways of a collective where a rank is a core: torch with Gloo, and what weft has there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from weft.cost.price import Price
from weft.planner.coded_ways import coded_ways
from weft.planner.prices import Prices
from weft.planner.ways import Way, refused
from weft.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.hardware import Platform
    from weft.planner.plan import Alternative, Limits
    from weft.planner.ways import Pair

_ONE_CORE = "a rank has one core: there are no units to share out"


@dataclass(frozen=True)
class CpuWays:
    """Lists the ways of pairs on cores."""

    platform: Platform
    prices: Prices
    limits: Limits
    simulated: bool = True

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
        yield Way("serial", mine, serial=True, settings=settings, why="nothing runs beside it")
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
        settings = {"backend": "weft", "engines": 1}
        why = "an engine thread copies on a core that has no rank"
        return Way("dma", mine, settings=settings, engines=1, why=why)

    def _fused(self, pair: Pair, mine: Price) -> Way | Alternative:
        """Pooled straight into the ranks that want it: what is left of an exchange is meeting."""
        if pair.what.kind != "all_to_all" or not pair.looks_up:
            return refused("fused", "weft fuses lookups in embedding tables with their exchange")
        if self._spans(pair):
            return refused("fused", "its ranks are on several hosts, whose memory is not shared")
        meeting = self.weft.collective_price(replace(pair.what, nbytes=64), pair.ranks)
        least = Price(meeting.seconds, meeting.low, mine.high, model="fused")
        alone = least if pair.phase != "backward" else mine
        settings = {"backend": "weft", "fused": "embedding_all_to_all"}
        why = "bags are summed straight into the memory of the ranks that want them"
        if pair.phase == "backward":
            why = "gradients are read where the ranks that have them left them"
        return Way("fused", alone, settings=settings, why=why)

    def _coded(self, pair: Pair) -> Iterator[Way | Alternative]:
        if pair.what.kind != "broadcast":
            yield refused("compressed", "weft encodes broadcasts between hosts only")
        elif not self._spans(pair):
            yield refused("compressed", "inside a host memory is faster than any codec")
        else:
            for way in coded_ways(pair, self.weft, self.limits):
                settings = {"backend": "weft", **way.settings}
                yield replace(way, settings=settings)  # type: ignore[type-var]
