"""How long single ops of torch take here, by themselves: with caches swept before, and without.

Two ranks, each on a core of its own, carry out the same op at the same time, as the ranks of a
data-parallel job do. Nothing of the step that is predicted is ever run.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from weft.runtime.measuring import RANKS, pin
from weft.runtime.spawn import spawn
from weft.torch.steady import steady_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weft.runtime.world import World
    from weft.torch.op_calls import OpCall

SWEPT = 48 << 20  # bytes that a rank goes through so that no cache holds anything else
_REPEATS = 5
_TIMEOUT = 120.0


class OpTime(NamedTuple):
    """Seconds of an op: ``cold`` with its data in memory only, ``warm`` with it in the caches."""

    cold: float
    warm: float


def time_ops(calls: Sequence[OpCall], *, repeats: int = _REPEATS, threads: int = 1) -> list[OpTime]:
    """Time every call on two ranks at once, in one thread each, or on one rank in several."""
    ranks = RANKS if threads == 1 else 1
    with steady_memory() if threads == 1 else nullcontext():
        found = spawn(_timed_calls, ranks, list(calls), repeats, threads, timeout=_TIMEOUT)
    # Ranks wait for each other in every step, so the slower one counts.
    return [
        OpTime(*(max(values) for values in zip(*each, strict=True)))
        for each in zip(*found, strict=True)
    ]


def _timed_calls(world: World, calls: list[OpCall], repeats: int, threads: int) -> list[OpTime]:
    if threads == 1:
        pin(world)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    swept = np.ones(SWEPT // 8)
    with torch.no_grad():
        return [_timed(world, call, swept, repeats) for call in calls]


def _timed(world: World, call: OpCall, swept: np.ndarray, repeats: int) -> OpTime:
    act, other = _act(call, 0), _act(call, 1)
    act()  # what only a first call does
    cold, warm = [], []
    for _ in range(repeats):
        np.add(swept, 1.0, out=swept)
        other()  # its code is in the caches again, and none of the data of the one that is timed
        world.barrier()
        cold.append(_seconds(act))
        warm.append(_seconds(act))
    return OpTime(_typical(cold), _typical(warm))


def _typical(times: list[float]) -> float:
    """Give the mean without the slowest: a step is a sum, so what happens often counts in it."""
    return fmean(sorted(times)[:-1])


def _act(call: OpCall, seed: int) -> Callable[[], object]:
    function = call.function
    args, kwargs = call.made(np.random.default_rng(seed))
    return lambda: function(*args, **kwargs)


def _seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin
