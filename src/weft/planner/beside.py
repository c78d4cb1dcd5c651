"""What the kernel of a library's collective does to kernels beside it, in `predict` and in plans.

A collective holds as many units as fill the links. What multiplies runs on the rest. Of what moves
bytes a third of that was seen: kernels that are no products took 1.09 and 1.03 times as long
beside NCCL in two jobs on A100, products 1.10 and 1.29 times, where a fifth of the units are held.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.simulator import collective_units
from weft.workload.lower import seconds_of
from weft.workload.walk import walked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.hardware import Device, Platform
    from weft.workload import HostModel, Op, Prices, Workload
    from weft.workload.walk import Met, Walker

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)
# What stretches changes what overlaps: walk, stretch, walk again. A third time changes less than a
# tenth of a percent.
ROUNDS = 2
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


def slow_down(platform: Platform, kind: str, movers: float, units: int | None = None) -> float:
    """Say how many times as long kernels take beside a collective on the units it holds.

    ``movers`` is the share of their time in those that memory bounds.
    """
    total = platform.require_device().units
    held = min(units or collective_units(platform, kind), total - 1)
    return 1 + held / max(1, total - held) * (1 - movers + movers * _OF_MOVERS)


def stretched(over: Number, times: Number) -> Number:
    """Say how much longer work takes that runs ``over`` seconds at the ``times``-th of its rate."""
    return over - over / times


def is_mover(op: Op, device: Device) -> bool:
    """Whether a kernel is bound by memory rather than arithmetic."""
    cost = op.cost
    if cost is None or not cost.flops:
        return cost is not None and cost.family not in _PRODUCTS
    rates = [rate.achieved for name, rate in device.flops.items() if name == cost.dtype]
    rate = rates[0] if rates else max(rate.achieved for rate in device.flops.values())
    return cost.nbytes / device.memory_rate > cost.flops / rate


def slowed(
    workload: Workload,
    platform: Platform,
    prices: Prices,
    *,
    host: HostModel | None = None,
    met: Met | None = None,
    times: float = 1.0,
) -> Workload:
    """Stretch kernels while collectives run beside them, ``times`` as much as is expected."""
    found = workload
    for _ in range(ROUNDS):
        walkers = walked(found, platform, prices, host=host, met=met)
        steps = tuple(
            replace(step, ops=_slowed(step.ops, platform, prices, walker, times))
            for step, walker in zip(workload.steps, walkers, strict=True)
        )
        found = replace(workload, steps=steps)
    return found


def _slowed(
    ops: tuple[Op, ...], platform: Platform, prices: Prices, walker: Walker, times: float
) -> tuple[Op, ...]:
    """Stretch the kernels of a class of ranks by each kind of collective on each stream."""
    kernels = [n for n, op in enumerate(ops) if op.kind == "kernel" and op.seconds is None]
    device = platform.require_device()
    movers = np.array([is_mover(ops[n], device) for n in kernels], float)
    more = np.zeros(len(kernels))
    for (kind, _), members in _collectives(ops, walker).items():
        lost = times * (np.array([slow_down(platform, kind, each) for each in (0.0, 1.0)]) - 1)
        factor = 1 + np.where(movers > 0, lost[1], lost[0])
        more += stretched(_over(walker, kernels, members), factor)
    changed = list(ops)
    for number, extra in zip(kernels, more.tolist(), strict=True):
        if extra > 0:
            op = ops[number]
            changed[number] = replace(op, seconds=seconds_of(op, None, prices) + extra)
    return tuple(changed)


def _collectives(ops: tuple[Op, ...], walker: Walker) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, op in enumerate(ops):
        if op.collective is not None and number in walker.starts:
            found[op.collective.kind, op.stream].append(number)
    return found


def _over(walker: Walker, kernels: Sequence[int], collectives: Sequence[int]) -> Floats:
    """Give of each kernel the seconds beside collectives of one stream, which do not overlap."""

    def times(numbers: Sequence[int]) -> tuple[Floats, Floats]:
        starts = np.array([walker.starts[n][1] for n in numbers])
        return starts, np.array([walker.ends[n] for n in numbers])

    first, last = times(sorted(collectives, key=lambda n: walker.starts[n][1]))
    edges = np.stack([first, last], axis=1).reshape(-1)
    passed = np.concatenate([[0.0], np.cumsum(last - first)]).repeat(2)[1:-1]
    start, end = times(kernels)
    inside: Floats = np.interp(end, edges, passed) - np.interp(start, edges, passed)
    return inside
