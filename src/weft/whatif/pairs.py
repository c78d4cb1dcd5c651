"""What a strategy changes for a recorded collective and the kernels beside it.

What was recorded is taken to have been launched first. The kernels of the step may be bound by
arithmetic or by memory: the two are the range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import WeftError
from weft.planner.pair_effects import BOUNDS, Effect, Node
from weft.planner.pair_effects import effect as changed

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.trace import Collective as Recorded

__all__ = ["BOUNDS", "Effect", "effect"]


def effect(machine: Platform, what: Recorded, strategy: str, bound: str) -> Effect | None:
    """Give the effect of a strategy; None where the pair cannot be carried out so."""
    if not what.nbytes or not what.num_ranks or what.num_ranks < 2:
        return None
    try:
        return changed(
            Node(machine.resized(what.num_ranks)), what.kind, what.nbytes, strategy, bound
        )
    except WeftError:  # more ranks than a node, a collective without pairs, no engines
        return None
