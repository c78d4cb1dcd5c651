"""Kernels beside collectives take longer: what a collective kernel holds is gone from them.

A collective holds as many units as fill the links. What multiplies runs on the rest. Of what moves
bytes a third of that was seen: kernels that are no products took 1.09 and 1.03 times as long
beside NCCL in two jobs on A100, products 1.10 and 1.29 times, where a fifth of the units are held.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from weft.simulator import collective_units
from weft.workload.lower import seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weft.hardware import Platform
    from weft.workload import Op, Prices, Workload
    from weft.workload.walk import Walker

    Floats = NDArray[np.float64]

_PRODUCTS = frozenset(
    ("gemm", "bmm", "convolution", "attention", "attention-backward", "decode", "moe")
)
_OF_MOVERS = 1 / 3  # of what products lose; see above


def overlaps(workload: Workload, platform: Platform) -> bool:
    """Tell whether kernels may run beside collectives: not where a rank is one core."""
    if platform.require_device().shared is not None or workload.num_ranks < 2:
        return False
    return any(
        op.kind == "collective" and op.stream != "compute"
        for step in workload.steps
        for op in step.ops
    )


def slowed(
    workload: Workload,
    platform: Platform,
    prices: Prices,
    walkers: Sequence[Walker],
    times: float = 1.0,
) -> Workload:
    """Stretch kernels by their share beside collectives, ``times`` as much as is expected."""
    steps = tuple(
        replace(step, ops=_slowed(platform, prices, walker, times))
        for step, walker in zip(workload.steps, walkers, strict=True)
    )
    return replace(workload, steps=steps)


def _slowed(platform: Platform, prices: Prices, walker: Walker, times: float) -> tuple[Op, ...]:
    ops = walker.step.ops
    kinds = [n for n, op in enumerate(ops) if op.kind == "collective" and n in walker.starts]
    if not kinds:
        return ops
    start = np.array([walker.starts[n][1] for n in kinds])
    end = np.array([walker.ends[n] for n in kinds])
    length = end - start
    lost = np.array([_lost(platform, ops[n]) for n in kinds])
    mean = float((lost * length).sum() / max(length.sum(), 1e-300)) * times
    numbers = [n for n, op in enumerate(ops) if op.kind == "kernel" and op.seconds is None]
    share = _covered(walker, numbers, start, end)
    changed = list(ops)
    for number, part in zip(numbers, share.tolist(), strict=True):
        op = ops[number]
        if part > 0 and op.cost is not None:
            more = mean if op.cost.family in _PRODUCTS else mean * _OF_MOVERS
            alone = seconds_of(op, None, prices)
            changed[number] = replace(op, seconds=alone * (1 + part * more))
    return tuple(changed)


def _lost(platform: Platform, op: Op) -> float:
    """Say how much longer something takes on the units that a collective leaves."""
    units = platform.require_device().units
    held = collective_units(platform, op.collective.kind if op.collective else "")
    return held / max(1, units - held)


def _covered(walker: Walker, numbers: Sequence[int], start: Floats, end: Floats) -> Floats:
    """Give of each kernel the share of its time in which some collective runs."""
    order = np.argsort(start)
    begins, ends = start[order], np.maximum.accumulate(end[order])
    fresh = np.concatenate([[True], begins[1:] > ends[:-1]])
    first = begins[fresh]
    last = ends[np.concatenate([np.flatnonzero(fresh)[1:] - 1, [len(ends) - 1]])]
    edges = np.stack([first, last], axis=1).reshape(-1)
    passed = np.concatenate([[0.0], np.cumsum(last - first)]).repeat(2)[1:-1]
    one = np.array([walker.starts[n][1] for n in numbers])
    other = np.array([walker.ends[n] for n in numbers])
    inside = np.interp(other, edges, passed) - np.interp(one, edges, passed)
    share: Floats = inside / np.maximum(other - one, 1e-300)
    return share
