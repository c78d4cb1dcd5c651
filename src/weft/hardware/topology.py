"""Paths through a platform: which ports and links a transfer crosses, and its latency.

Ranks have one coordinate for each level, the innermost first. A transfer settles its
coordinates from the inside out, crossing each level on which the two ranks differ once:
over the port of the rank where it stands, to the rank with that coordinate settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weft.hardware.network import Level

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Crossing:
    """The transfers (by number) that cross one level, and between which ranks."""

    level: int
    transfers: Ints
    src: Ints
    dst: Ints


def crossings(levels: tuple[Level, ...], src: Ints, dst: Ints) -> Iterator[Crossing]:
    """Yield each level's share of the transfers from ``src`` to ``dst``."""
    here = np.asarray(src, np.int64)
    goal = np.asarray(dst, np.int64)
    stride = 1
    for number, level in enumerate(levels):
        aligned = here + (goal // stride % level.size - here // stride % level.size) * stride
        moving = np.flatnonzero(aligned != here)
        if len(moving):
            yield Crossing(number, moving, here[moving], aligned[moving])
        here = aligned
        stride *= level.size


def exchange_rate(levels: tuple[Level, ...]) -> float:
    """Return the rate at which each rank sends as much to every other, all of them at once.

    Of its messages to the n - 1 others those cross a level whose ends differ there, from every
    rank as many; the busiest level decides.

    >>> from weft.hardware.network import parse_network
    >>> exchange_rate(parse_network("switch(4)@3GB/s/switch(2)@2GB/s"))
    3500000000.0
    """
    num_ranks = prod(level.size for level in levels)
    return min(
        level.rate * (num_ranks - 1) * level.size / (num_ranks * (level.size - 1))
        for level in levels
        if level.size > 1
    )


def ring_hops(size: int, src: Any, dst: Any) -> Any:
    """Return the hops the shorter way round, negative towards smaller positions."""
    forward = (dst - src) % size
    return np.where(forward <= size - forward, forward, forward - size)


def latencies(levels: tuple[Level, ...], src: Ints, dst: Ints) -> NDArray[np.float64]:
    """Return the seconds to the first byte: a latency per switch, or per hop of a ring or mesh."""
    total = np.zeros(len(src))
    stride = _strides(levels)
    for crossing in crossings(levels, src, dst):
        level = levels[crossing.level]
        hops: Any = 1
        if level.kind == "ring":
            step = stride[crossing.level]
            hops = np.abs(ring_hops(level.size, crossing.src // step, crossing.dst // step))
        total[crossing.transfers] += level.latency * hops
    return total


def _strides(levels: tuple[Level, ...]) -> list[int]:
    strides = [1]
    for level in levels:
        strides.append(strides[-1] * level.size)
    return strides
