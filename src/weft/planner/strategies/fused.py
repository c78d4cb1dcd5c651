"""Fused: the kernel that produces a collective's input sends it, slice by slice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.cost.price import Price
from weft.fused.embedding_all_to_all import SLICES as EMBEDDING_SLICES
from weft.planner.candidates import OCCUPANCY, SLICES, Candidate, infeasible
from weft.schedule.strategy import Strategy
from weft.timeline.kernel_names import short_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.planner.candidates import CollectiveGroup
    from weft.planner.plan import Alternative
    from weft.planner.strategies.context import StrategyContext

_KINDS = ("all_to_all", "all_reduce", "reduce_scatter")  # that fused operators end in


def candidates(
    context: StrategyContext, group: CollectiveGroup
) -> Iterator[Candidate | Alternative]:
    """Fuse a collective with the lookup or product right before it."""
    yield _on_core(context, group) if context.device.is_core else _on_gpu(context, group)


def _on_gpu(context: StrategyContext, group: CollectiveGroup) -> Candidate | Alternative:
    if group.what.kind not in _KINDS:
        return infeasible("fused", f"no fused operator ends in {group.what.kind}")
    if not group.producers:
        return infeasible("fused", "no lookup or product right before it produces all its input")
    producer = short_name(group.produced_by)
    return Candidate(
        Strategy("fused", fused=f"{producer} + {group.what.kind}"),
        context.alone(group),
        slices=SLICES,
        # The middle of the range: from no slowdown to the loss of occupancy.
        producer=(1 + OCCUPANCY) / 2,
        why=f"slices of {producer} leave while it computes the next",
    )


def _on_core(context: StrategyContext, group: CollectiveGroup) -> Candidate | Alternative:
    """Pool straight into the ranks that want it: what is left of an exchange is synchronizing."""
    if group.what.kind != "all_to_all" or not (group.looks_up or group.lookups):
        return infeasible("fused", "weft fuses lookups in embedding tables with their exchange")
    spans, backward = context.spans_nodes(group), group.phase == "backward"
    strategy = Strategy("fused", backend="weft", fused="embedding_all_to_all")
    why = "bags are summed straight into the memory of the ranks that want them"
    if backward:
        why = "gradients are read where they lie, rows are changed as they come"
    if spans:
        why = "what is summed is sent while the rest is summed"
    found = [each.seconds(context.device, group.phase) for each in group.lookups]
    if not found or None in found:
        if spans or not context.platform.libraries:
            return infeasible("fused", "what its lookups take was not measured: weft calibrate")
        return Candidate(strategy, _exchange(context, group), why=why)
    work = max((each for each in found if each), key=lambda each: each.seconds)
    alone = joined(work, _exchange(context, group), overlaps=spans and not backward)
    replaced = tuple(
        (place[0], n)
        for place, each in zip(group.members, group.lookups, strict=True)
        for n in each.replaced
    )
    return Candidate(strategy, alone, exclusive=True, replaced=replaced, why=why)


def _exchange(context: StrategyContext, group: CollectiveGroup) -> Price:
    """Return what is left of the exchange itself: inside a host, synchronizing and reading."""
    mine = context.weft.collective_price(group.what, group.ranks)
    if context.spans_nodes(group) or group.phase == "backward":
        return mine
    meets = context.weft.collective_price(replace(group.what, nbytes=64), group.ranks)
    # At the worst nothing is saved: the high end is that of the whole exchange.
    return Price(meets.seconds, meets.low, mine.high, model="fused")


def joined(work: Price, moves: Price, *, overlaps: bool) -> Price:
    """Add computation and exchange: one after the other, or as slices that are sent meanwhile."""

    def both(one: float, other: float) -> float:
        # A pipeline of slices: the shorter side shows for one slice, the rest is hidden.
        hidden = min(one, other) / EMBEDDING_SLICES
        return max(one, other) + hidden if overlaps else one + other

    return Price(
        both(work.seconds, moves.seconds),
        both(work.low, moves.low),
        both(work.high, moves.high),
        model="fused",
    )
