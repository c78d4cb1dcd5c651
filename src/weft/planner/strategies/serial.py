"""Serial: nothing runs next to the collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.planner.candidates import Candidate, infeasible
from weft.schedule.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.planner.candidates import CollectiveGroup
    from weft.planner.plan import Alternative
    from weft.planner.strategies.context import StrategyContext


def candidates(
    context: StrategyContext, group: CollectiveGroup
) -> Iterator[Candidate | Alternative]:
    """Hold all units; ranks that are cores take turns anyway."""
    if context.device.is_core:
        yield infeasible("serial", "everything that a rank does takes turns on its core anyway")
        return
    why = "nothing runs next to it"
    yield Candidate(Strategy("serial"), context.alone(group), exclusive=True, why=why)
