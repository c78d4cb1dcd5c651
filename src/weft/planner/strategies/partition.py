"""Partition: the collective's kernel is confined to fewer units, with or without priority."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from weft.c3.strategies import COLLECTIVES, masks
from weft.cost.bus import bus_factor
from weft.planner.candidates import Candidate, infeasible
from weft.planner.strategies.context import ONE_CORE, scaled
from weft.schedule.strategy import Strategy
from weft.simulator import collective_units, unit_rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.planner.candidates import CollectiveGroup
    from weft.planner.plan import Alternative
    from weft.planner.strategies.context import StrategyContext

_NAMES = ("partition", "priority+partition")


def candidates(
    context: StrategyContext, group: CollectiveGroup
) -> Iterator[Candidate | Alternative]:
    """Take fewer units than the library; the collective is slower when they fill no link."""
    device = context.device
    if device.is_core:
        yield from (infeasible(name, ONE_CORE) for name in _NAMES)
        return
    filled = collective_units(context.platform, group.what.kind)
    fewer = [units for units in masks(device) if units < filled]
    if not fewer:
        why = f"its kernel takes {filled} units, no more than the smallest mask"
        yield from (infeasible(name, why) for name in _NAMES)
        return
    alone = context.alone(group)
    needed = _needed_units(context, group, alone.seconds, filled)
    for units in fewer:
        # A unit moves bytes at a fixed rate: fewer units than fill the port take proportionally
        # longer.
        price = scaled(alone, max(1.0, needed / units))
        why = f"leaves {device.units - units} of {device.units} units to kernels"
        yield Candidate(Strategy("partition", units=units), price, units, why=why)
        both = Strategy("priority+partition", priority=1, units=units)
        yield Candidate(both, price, units, why=why)


def _needed_units(
    context: StrategyContext, group: CollectiveGroup, seconds: float, filled: int
) -> int:
    """Return the units that a collective needs: a port between nodes is filled by fewer."""
    if not context.spans_nodes(group):
        return filled
    count, kind, grain = len(group.ranks), group.what.kind, context.device.unit_grain
    crossing = bus_factor(kind, count) if kind in COLLECTIVES else 1.0
    rate = crossing * group.what.nbytes / max(seconds, 1e-9)
    units = ceil(rate / unit_rate(context.platform, kind) / grain) * grain
    return min(filled, max(grain, units))
