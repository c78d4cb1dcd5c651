"""Concurrent: the collective on a stream of its own, by the library or something faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.collectives import KINDS, algorithms
from weft.hardware.software_stack import library_units
from weft.planner.candidates import Candidate
from weft.planner.strategies.context import NodeKey, algorithm_price
from weft.schedule.strategy import Strategy
from weft.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.planner.candidates import CollectiveGroup
    from weft.planner.strategies.context import StrategyContext

_ALGORITHMS = ("direct", "ring", "tree", "binomial", "halving-doubling", "scatter-allgather")
_WORTH = 0.95  # what another algorithm must be below to be worth leaving the library


def baseline(context: StrategyContext, group: CollectiveGroup) -> Candidate:
    """Return what torch does by itself: the library's kernel on a stream of its own."""
    if context.device.is_core:
        return Candidate(
            Strategy("concurrent", backend=context.prices.library), context.alone(group)
        )
    held = None
    if not context.spans_nodes(group):
        held = library_units(context.stack, context.device, group.what.kind, group.what.nbytes)
    units = None if held is None else held.units
    return Candidate(Strategy("concurrent"), context.alone(group), units)


def candidates(context: StrategyContext, group: CollectiveGroup) -> Iterator[Candidate]:
    """Yield the library, then weft's backend on cores or faster algorithms on GPUs."""
    base = baseline(context, group)
    yield base
    if context.device.is_core:
        mine = context.weft.collective_price(group.what, group.ranks)
        moved = "one message a host" if context.spans_nodes(group) else "through shared memory"
        why = f"{moved}: {format_time(mine.seconds)} by weft"
        yield Candidate(Strategy("concurrent", "weft", "auto"), mine, why=why)
        return
    node, what = context.node(group), group.what
    if node is None or base.alone.model != "simulated":  # what was measured is no peer of a model
        return
    known = algorithms(what.kind) if what.kind in KINDS else ()
    for name in (each for each in _ALGORITHMS if each in known):
        price = algorithm_price(NodeKey(node), what.kind, name, what.nbytes)
        if price is not None and price.seconds < _WORTH * base.alone.seconds:
            yield Candidate(Strategy("concurrent", algorithm=name), price)
