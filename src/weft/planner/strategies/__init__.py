"""The candidates of a collective: one module for each strategy of ``weft.schedule.strategy``.

A module has one function, ``candidates(context, group)``, which yields a ``Candidate`` for each
variant that the platform can execute and an infeasible ``Alternative``, with its reason, for what
it cannot.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.gpu.knobs import NotExecutable, StrategyDemand, execution_of
from weft.planner.candidates import infeasible
from weft.planner.plan import Alternative
from weft.planner.strategies.concurrent import baseline
from weft.planner.strategies.context import StrategyContext
from weft.schedule.strategy import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.planner.candidates import Candidate, CollectiveGroup

__all__ = ["StrategyContext", "baseline", "candidates_of"]


@cache
def _modules() -> tuple[Any, ...]:
    names = dict.fromkeys(kind.module for kind in STRATEGIES.values())
    return tuple(import_module(f"{__name__}.{name}") for name in names)


def candidates_of(
    context: StrategyContext, group: CollectiveGroup
) -> Iterator[Candidate | Alternative]:
    """List every candidate of a group, and what is infeasible here with the reason."""
    for module in _modules():
        for each in module.candidates(context, group):
            yield each if isinstance(each, Alternative) else _executable(context, group, each)


def _executable(
    context: StrategyContext, group: CollectiveGroup, candidate: Candidate
) -> Candidate | Alternative:
    """Return the candidate, or why no engine of the software stack carries it out."""
    if context.device.is_core or context.limits.hypothetical:
        return candidate
    demand = StrategyDemand(
        candidate.strategy,
        group.what.kind,
        group.what.nbytes,
        len(group.ranks),
        context.device.vendor,
        in_node=not context.spans_nodes(group),
        producer="" if not group.producers else "lookup" if group.looks_up else "gemm",
    )
    found = execution_of(demand, context.stack)
    if isinstance(found, NotExecutable):
        return infeasible(candidate.strategy, found.reason)
    compiled = "; needs torch.compile" if found.compiled else ""
    return replace(candidate, why=f"{candidate.why}{compiled}") if compiled else candidate
