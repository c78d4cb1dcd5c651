"""Which ranks a simulation may leave out, given what the platform looks the same under."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weft.schedule.rank_symmetry import BOTH, ROTATE, Symmetry, find_symmetry, no_symmetry

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.schedule import Schedule

# A ring looks the same when turned; a switch and a full mesh under any exchange of ranks.
_WAYS = {"ring": frozenset((ROTATE,)), "switch": BOTH, "mesh": BOTH}


def platform_symmetry(schedule: Schedule, platform: Platform, *, collapse: bool) -> Symmetry:
    """How the schedule collapses on this platform, with one coordinate for each level."""
    dims = tuple(level.size for level in platform.levels)
    if not collapse:
        return no_symmetry(dims)
    return find_symmetry(schedule, dims, (_WAYS[level.kind] for level in platform.levels))


def alike_in_node(platform: Platform, symmetry: Symmetry) -> int:
    """For how many ranks of its node, itself among them, one that is simulated stands."""
    levels = list(zip(symmetry.dims, symmetry.actions, strict=True))[: platform.node_levels]
    return prod(dim for dim, action in levels if action)
