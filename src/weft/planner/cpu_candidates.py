"""Candidates where a rank is a core: torch with Gloo, and what weft has there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from weft.cost.price import Price
from weft.fused.embedding_all_to_all import SLICES
from weft.planner.candidates import Candidate, infeasible
from weft.planner.coded_candidates import coded_candidates
from weft.planner.prices import Prices
from weft.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.hardware import Platform
    from weft.planner.candidates import CollectiveGroup
    from weft.planner.plan import Alternative, Limits, Settings

_ONE_CORE = "a rank has one core: there are no units to share out"


@dataclass(frozen=True)
class CpuCandidates:
    """Lists the candidates of collectives on cores."""

    platform: Platform
    prices: Prices
    limits: Limits

    @cached_property
    def weft(self) -> Prices:
        """What collectives take by weft."""
        return Prices(self.platform, library="weft")

    def base(self, group: CollectiveGroup) -> Candidate:
        """Return what torch does by itself."""
        alone = self.prices.collective_price(group.what, group.ranks)
        return Candidate("concurrent", alone, settings={"backend": self.prices.library})

    def of(self, group: CollectiveGroup) -> Iterator[Candidate | Alternative]:
        """List every candidate, and what is infeasible here with the reason."""
        base, mine = self.base(group), self.weft.collective_price(group.what, group.ranks)
        yield base
        settings = {"backend": "weft", "algorithm": "auto"}
        why = f"through shared memory: {format_time(mine.seconds)} by weft"
        if self._spans(group):
            why = f"one message a host: {format_time(mine.seconds)} by weft"
        yield Candidate("concurrent", mine, settings=settings, why=why)
        yield infeasible("serial", "everything that a rank does takes turns on its core anyway")
        for strategy in ("priority", "partition", "priority+partition", "dma+partition"):
            yield infeasible(strategy, _ONE_CORE)
        yield self._by_engines(mine)
        yield self._fused(group, mine)
        yield from self._coded(group)

    def _spans(self, group: CollectiveGroup) -> bool:
        """Whether its ranks are on several hosts."""
        levels = self.prices.levels(group.ranks)
        return any(level.size > 1 for level in levels[self.platform.node_levels :])

    def _by_engines(self, mine: Price) -> Candidate | Alternative:
        """A copy engine is a thread: it needs a core that no rank has."""
        machine = self.platform.machine
        cores = machine.cores if machine is not None else self.platform.node_size
        if cores <= self.platform.node_size:
            return infeasible("dma", f"an engine is a thread, and {cores} cores have a rank each")
        if self.limits.engines is not None and self.limits.engines < 1:
            return infeasible("dma", f"needs 1 engine, {self.limits.engines} are allowed")
        settings: Settings = {"backend": "weft", "engines": 1}
        why = "an engine thread copies on a core that has no rank"
        return Candidate("dma", mine, settings=settings, why=why)

    def _fused(self, group: CollectiveGroup, mine: Price) -> Candidate | Alternative:
        """Pooled straight into the ranks that want it: what is left of an exchange is meeting."""
        if group.what.kind != "all_to_all" or not (group.looks_up or group.lookups):
            return infeasible("fused", "weft fuses lookups in embedding tables with their exchange")
        settings = {"backend": "weft", "fused": "embedding_all_to_all"}
        why = "bags are summed straight into the memory of the ranks that want them"
        if group.phase == "backward":
            why = "gradients are read where they lie, rows are changed as they come"
        if self._spans(group):
            why = "what is summed is sent while the rest is summed"
        device = self.platform.require_device()
        found = [each.seconds(device, group.phase) for each in group.lookups]
        if not found or None in found:
            if self._spans(group) or not self.platform.libraries:
                return infeasible("fused", "what its lookups take was not measured: weft calibrate")
            return Candidate("fused", self._exchanged(group, mine), settings=settings, why=why)
        work = max((each for each in found if each), key=lambda each: each.seconds)
        alone = _joined(work, self._exchanged(group, mine), overlaps=self._overlaps(group))
        replaced = tuple(
            (place[0], n)
            for place, each in zip(group.members, group.lookups, strict=True)
            for n in each.replaced
        )
        return Candidate(
            "fused", alone, exclusive=True, replaced=replaced, settings=settings, why=why
        )

    def _overlaps(self, group: CollectiveGroup) -> bool:
        """Whether rows are on the wire while others are summed: forth, between hosts."""
        return self._spans(group) and group.phase != "backward"

    def _exchanged(self, group: CollectiveGroup, mine: Price) -> Price:
        """Return what is left of the exchange itself: inside a host, meeting and reading."""
        if self._spans(group) or group.phase == "backward":
            return mine
        meeting = self.weft.collective_price(replace(group.what, nbytes=64), group.ranks)
        return Price(meeting.seconds, meeting.low, mine.high, model="fused")

    def _coded(self, group: CollectiveGroup) -> Iterator[Candidate | Alternative]:
        if group.what.kind != "broadcast":
            yield infeasible("compressed", "weft encodes broadcasts between hosts only")
        elif not self._spans(group):
            yield infeasible("compressed", "inside a host memory is faster than any codec")
        else:
            for candidate in coded_candidates(group, self.weft, self.limits):
                settings = {"backend": "weft", **candidate.settings}
                yield replace(candidate, settings=settings)


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
