"""Candidates: how a collective of a step could be carried out, as the planner sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.planner.plan import Alternative
from weft.schedule.strategy import Strategy

if TYPE_CHECKING:
    from weft.cost.price import Price
    from weft.planner.lookup_ops import TableLookups
    from weft.step import Collective

# A fused kernel sends its output in slices: the first transfer starts with the first of them.
SLICES = 16
# Fused kernels run at 12.5 % less occupancy (SC24, arXiv 2305.06942): the worst of a range from 1.
OCCUPANCY = 1.125

Place = tuple[int, int]  # class of ranks, number of the op


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy for a collective with its price: seconds alone, and what it holds meanwhile."""

    strategy: Strategy
    alone: Price
    units: int | None = None  # that are taken from kernels; None: as many as the library takes
    exclusive: bool = False  # nothing runs next to it
    slices: int = 0  # in which it starts inside the kernel that produces its input
    producer: float = 1.0  # how many times as long that kernel takes
    replaced: tuple[Place, ...] = ()  # ops that fall away
    memory: int = 0  # bytes that it takes of those that a plan may use
    why: str = ""


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """Equal collectives of a step, and what runs next to them."""

    what: Collective
    ranks: tuple[int, ...]
    members: tuple[Place, ...]
    hidden: float  # share of their time in which kernels run
    alone: float = 0.0  # price on ``ranks``; members take what they were recorded to, as a share
    phase: str = ""
    producers: tuple[Place, ...] = ()  # kernels whose output it sends, which could send slices
    produced_by: str = ""
    producer_seconds: float = 0.0  # of the slowest of them
    overlapped: str = ""  # name of most kernels that run next to it
    looks_up: bool = False  # whether embedding tables produce its input or take its output
    lookups: tuple[TableLookups, ...] = ()  # of each member, where all have some


def infeasible(strategy: Strategy | str, why: str) -> Alternative:
    """Return a strategy that cannot be executed here, with the reason."""
    return Alternative(Strategy(strategy) if isinstance(strategy, str) else strategy, None, why)
