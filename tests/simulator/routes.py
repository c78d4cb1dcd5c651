"""Which links a transfer crosses, walked step by step as a reader would on a drawing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.hardware import Level, Platform

Link = tuple[Any, ...]


def coordinates(rank: int, levels: tuple[Level, ...]) -> list[int]:
    """Where a rank stands on each level, the innermost first."""
    place = []
    for level in levels:
        rank, here = divmod(rank, level.size)
        place.append(here)
    return place


def links(src: int, dst: int, network: Platform) -> Iterator[tuple[Link, float]]:
    """Each link of the way with its rate: levels are settled from the inside out."""
    here, goal = (coordinates(rank, network.levels) for rank in (src, dst))
    for number, level in enumerate(network.levels):
        while here[number] != goal[number]:
            before = tuple(here)
            here[number] = _towards(here[number], goal[number], level)
            yield from _crossed(number, level, before, tuple(here))


def _towards(here: int, goal: int, level: Level) -> int:
    """On a ring one step the shorter way round, upwards where both are as long; else at once."""
    if level.kind != "ring":
        return goal
    upwards = (goal - here) % level.size
    return (here + (1 if upwards <= level.size - upwards else -1)) % level.size


def _crossed(
    number: int, level: Level, before: tuple[int, ...], after: tuple[int, ...]
) -> Iterator[tuple[Link, float]]:
    if level.kind == "switch":
        yield (number, "out", before), level.rate
        yield (number, "in", after), level.rate
    else:
        others = max(1, level.size - 1) if level.kind == "mesh" else 1
        upwards = (after[number] - before[number]) % level.size == 1
        # Two links join the two ranks of a ring of two; only the upward one is on a shortest way.
        yield (number, before, after, upwards), level.rate / others
