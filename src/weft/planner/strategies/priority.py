"""Priority: the collective's kernel goes before kernels that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.planner.candidates import Candidate, infeasible
from weft.planner.strategies.context import ONE_CORE
from weft.schedule.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.planner.candidates import CollectiveGroup
    from weft.planner.plan import Alternative
    from weft.planner.strategies.context import StrategyContext


def candidates(
    context: StrategyContext, group: CollectiveGroup
) -> Iterator[Candidate | Alternative]:
    """Return its kernel every slot that comes free."""
    if context.device.is_core:
        yield infeasible("priority", ONE_CORE)
        return
    why = "its kernel gets every slot that comes free"
    yield Candidate(Strategy("priority", priority=1), context.alone(group), why=why)
