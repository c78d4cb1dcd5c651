"""How long single ops of torch take here, by themselves: with caches swept before, and without.

Two ranks, each on a core of its own, carry out the same op at the same time, as the ranks of a
data-parallel job do. Nothing of the step that is predicted is ever run.

A core is not always equally fast: others on the same machine have a share of what lies below it.
So every repetition stands between two products of small matrices and behind a sweep of the caches,
and counts only if these were about as fast as the fastest: what is said of an op is what it takes
on a core that has all of its own to itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from weft.runtime.measuring import RANKS, pin
from weft.runtime.spawn import spawn
from weft.torch.core_pace import Pace, Probe, best_pace, calm
from weft.torch.steady import steady_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weft.runtime.world import World
    from weft.torch.op_calls import OpCall

_REPEATS = 5
_TIMEOUT = 120.0
# Ops of a group are timed after one sweep: their data together are more than caches hold anyway.
_GROUP_OPS, _GROUP_BYTES = 24, 256 << 20


class OpTime(NamedTuple):
    """Seconds of an op: ``cold`` with its data in memory only, ``warm`` with it in the caches.

    ``spread`` is how far a repetition was from the middle of all, in the middle.
    """

    cold: float
    warm: float
    spread: float = 0.0


class Repetition(NamedTuple):
    """An op carried out once with its data in memory and once more, and how fast the core was."""

    cold: float
    warm: float
    pace: Pace


Repeated = list[Repetition]


def time_ops(calls: Sequence[OpCall], *, repeats: int = _REPEATS, threads: int = 1) -> list[OpTime]:
    """Time every call on two ranks at once, in one thread each, or on one rank in several."""
    return typical(repeat_ops(calls, repeats=repeats, threads=threads))


def repeat_ops(
    calls: Sequence[OpCall], *, repeats: int = _REPEATS, threads: int = 1
) -> list[list[Repeated]]:
    """Repeat every call; gives the repetitions by rank and call."""
    ranks = RANKS if threads == 1 else 1
    with steady_memory() if threads == 1 else nullcontext():
        return spawn(_repeated_calls, ranks, list(calls), repeats, threads, timeout=_TIMEOUT)


def together(passes: Sequence[Sequence[Sequence[Repeated]]]) -> list[list[Repeated]]:
    """Put the repetitions of several passes together, by rank and call."""
    return [
        [list(chain.from_iterable(each)) for each in zip(*ranks, strict=True)]
        for ranks in zip(*passes, strict=True)
    ]


def typical(found: Sequence[Sequence[Repeated]], *, calm_only: bool = True) -> list[OpTime]:
    """Say what calls take by the repetitions of each rank, of which the calm ones count, or all.

    A rank meets the other only now and then, so what both take in the mean counts: the slower
    of the two in every single op would be more than the slower of two steps.
    """
    best = [best_pace([each.pace for each in chain.from_iterable(mine)]) for mine in found]
    times = []
    for each in zip(*found, strict=True):
        kept = [
            _typical(calm(mine, least) if calm_only else mine)
            for mine, least in zip(each, best, strict=True)
        ]
        times.append(OpTime(*(fmean(values) for values in zip(*kept, strict=True))))
    return times


def _typical(kept: Repeated) -> OpTime:
    """Give the middle of some repetitions."""
    cold, warm = median(each.cold for each in kept), median(each.warm for each in kept)
    return OpTime(cold, warm, median(abs(each.cold / max(cold, 1e-12) - 1) for each in kept))


def _repeated_calls(
    world: World, calls: list[OpCall], repeats: int, threads: int
) -> list[Repeated]:
    if threads == 1:
        pin(world)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    probe = Probe()
    found: list[Repeated] = []
    with torch.no_grad():
        for group in groups(calls):
            found += _repeated(world, group, probe, repeats)
    return found


def groups(calls: Sequence[OpCall]) -> Iterator[list[OpCall]]:
    """Cut the calls into groups whose data fit into memory together."""
    group: list[OpCall] = []
    room = _GROUP_BYTES
    for call in calls:
        room -= sum(each.nbytes for each in call.tensors)
        if group and (room < 0 or len(group) == _GROUP_OPS):
            yield group
            group, room = [], _GROUP_BYTES - sum(each.nbytes for each in call.tensors)
        group.append(call)
    if group:
        yield group


def _repeated(
    world: World, group: Sequence[OpCall], probe: Probe, repeats: int
) -> Iterator[Repeated]:
    pairs = [(_act(call, 0), _act(call, 1)) for call in group]
    for act, _ in pairs:
        act()  # what only a first call does
    found: list[Repeated] = [[] for _ in group]
    for _ in range(repeats):
        probe.sweep()
        for (act, other), mine in zip(pairs, found, strict=True):
            mine.append(_once(world, act, other, probe))
    yield from found


def _once(
    world: World, act: Callable[[], object], other: Callable[[], object], probe: Probe
) -> Repetition:
    """Carry an op out with its code in the caches and none of its data, its result included."""
    kept = other()
    world.barrier()
    first = probe.product()
    cold, warm = _seconds(act), _seconds(act)
    product = max(first, probe.product())
    del kept  # until here, so that the op found no memory that was used just before
    return Repetition(cold, warm, Pace(product, probe.swept))


def _act(call: OpCall, seed: int) -> Callable[[], object]:
    function = call.function
    args, kwargs = call.made(np.random.default_rng(seed))
    return lambda: function(*args, **kwargs)


def _seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin
