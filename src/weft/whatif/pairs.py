"""What a strategy changes for a recorded collective and the kernels next to it.

A trace does not say what bounds its kernels. So each collective runs on the step engine next to a
kernel bound by arithmetic and to one bound by memory, carried out by the planner's candidates; the
two are the range. What was recorded is taken to have been launched first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from weft.planner.candidates import Candidate, CollectiveGroup
from weft.planner.coded_candidates import coded_candidates
from weft.planner.evaluation import StepEvaluator
from weft.planner.gpu_candidates import GpuCandidates, NodeKey
from weft.planner.plan import Limits
from weft.planner.prices import Prices, default_library
from weft.schedule import Cost
from weft.workload import NO_HOST, Collective, Op, Step, Workload
from weft.workload.step import COLLECTIVES

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.step import StepRun
    from weft.trace import TracedCollective as Recorded

BOUNDS = ("arithmetic", "memory")
_SIDE = 8192  # of the product that stands for kernels bound by arithmetic
_COMM, _KERNEL = (0, 0), (0, 1)


class Effect(NamedTuple):
    """How many times as long a collective and the kernels next to it take as when recorded."""

    comm: float
    compute: float


def coded(machine: Platform, what: Recorded, codec: str) -> tuple[float, float, float] | None:
    """Return how many times as long a collective takes through a codec: expected, low and high.

    None where the planner has no such candidate: sums are not encoded.
    """
    if (node := _node(machine, what)) is None:
        return None
    return _coded(node, what.kind, what.nbytes or 0, what.dtype or "bf16", codec)


@lru_cache(maxsize=4096)
def _coded(
    node: NodeKey, kind: str, nbytes: int, dtype: str, codec: str
) -> tuple[float, float, float] | None:
    candidates, group = _asked(node, kind, nbytes, dtype)
    base = candidates.base(group).alone.seconds
    limits = Limits(error=1.0, codecs=(codec,))
    for each in coded_candidates(group, candidates.prices, limits):
        if isinstance(each, Candidate) and base:
            price = each.alone
            return price.seconds / base, price.low / base, price.high / base
    return None


def effect(machine: Platform, what: Recorded, strategy: str, bound: str) -> Effect | None:
    """Return the effect of a strategy; None where it is infeasible."""
    if (node := _node(machine, what)) is None:
        return None
    return _effect(node, what.kind, what.nbytes or 0, what.dtype or "bf16", strategy, bound)


def _node(machine: Platform, what: Recorded) -> NodeKey | None:
    """Return the part of a node that a collective runs on; None where that is not known."""
    ranks = what.num_ranks
    if not what.nbytes or not ranks or what.kind not in COLLECTIVES:
        return None
    return NodeKey(machine.resized(ranks)) if 2 <= ranks <= machine.node_size else None


def _asked(
    node: NodeKey, kind: str, nbytes: int, dtype: str
) -> tuple[GpuCandidates, CollectiveGroup]:
    machine = node.machine
    prices, ranks = Prices(machine, default_library(machine)), tuple(range(machine.num_ranks))
    group = CollectiveGroup(Collective(kind, nbytes, dtype), ranks, (_COMM,), 1.0)
    return GpuCandidates(machine, prices, Limits()), group


@lru_cache(maxsize=4096)
def _effect(
    node: NodeKey, kind: str, nbytes: int, dtype: str, strategy: str, bound: str
) -> Effect | None:
    machine, (candidates, group) = node.machine, _asked(node, kind, nbytes, dtype)
    base = candidates.base(group)
    if not base.alone.seconds:
        return None
    step = _pair(group, base.alone.seconds, bound, machine)
    evaluator = StepEvaluator(step, machine, candidates.prices, NO_HOST)
    runs = [
        evaluator.run([(group, each)])
        for each in candidates.of(group)
        if isinstance(each, Candidate) and each.strategy == strategy
    ]
    if not runs:
        return None
    # Of several masks the one that costs a step least where nothing hides the collective.
    mine = min(runs, key=lambda run: _length(run, _COMM) + _length(run, _KERNEL))
    recorded = evaluator.run([(group, base)])
    alone = evaluator.own[_KERNEL]
    return Effect(
        _length(mine, _COMM) / _length(recorded, _COMM),
        _slowdown(mine, alone) / _slowdown(recorded, alone),
    )


def _pair(group: CollectiveGroup, seconds: float, bound: str, machine: Platform) -> Workload:
    """Return a step of the collective and a kernel that runs longer, whatever slows either."""
    device, long = machine.require_device(), 8 * seconds
    dtype = next((each for each in ("bf16", "fp16", *device.flops) if each in device.flops), "bf16")
    cost = Cost("gemm", (_SIDE, _SIDE, _SIDE), dtype, 2.0 * _SIDE**3)
    if bound == "memory":
        cost = Cost("elementwise", (), dtype, 0.0, round(long * device.memory_rate))
    comm = Op(group.what.kind, "collective", "comm", None, group.what)
    kernel = Op("kernel", cost=cost, seconds=long)
    return Workload("pair", len(group.ranks), (Step(group.ranks, (comm, kernel)),))


def _length(run: StepRun, place: tuple[int, int]) -> float:
    start, end = run.span(place)
    return end - start


def _slowdown(run: StepRun, alone: float) -> float:
    """Return how many times as long the kernel takes while the collective runs."""
    over = _length(run, _COMM)
    lost = max(0.0, _length(run, _KERNEL) - alone)
    return over / max(over - lost, 1e-3 * over)
