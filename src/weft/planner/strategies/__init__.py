"""The candidates of a collective: one module for each strategy of ``weft.schedule.strategy_table``.

A module has one function, ``candidates(context, group)``, which yields a ``Candidate`` for each
variant that the platform can execute and an infeasible ``Alternative``, with its reason, for what
it cannot.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.planner.strategies.concurrent import baseline
from weft.planner.strategies.context import StrategyContext
from weft.schedule.strategy_table import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.planner.candidates import Candidate, CollectiveGroup
    from weft.planner.plan import Alternative

__all__ = ["StrategyContext", "baseline", "candidates_of"]


@cache
def _modules() -> tuple[Any, ...]:
    names = dict.fromkeys(strategy.module for strategy in STRATEGIES.values())
    return tuple(import_module(f"{__name__}.{name}") for name in names)


def candidates_of(
    context: StrategyContext, group: CollectiveGroup
) -> Iterator[Candidate | Alternative]:
    """List every candidate of a group, and what is infeasible here with the reason."""
    for module in _modules():
        yield from module.candidates(context, group)
