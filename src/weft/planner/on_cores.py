"""A step on ranks that are cores: everything that a rank does takes turns on its core.

torch carries ops out in the thread that asks for them. Collectives run in other threads, but with
as many ranks as cores these have no core of their own: what is called overlap is taking turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.schedule import Cost
from weft.step import Op

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.step import RankStep, StepGraph

COMPUTE = "compute"
# Bytes that AdamW moves for a parameter of fp32: fused, as generators count, and as torch does it
# on a CPU, eight ops one after another (decay, two moments, root, quotient, sum, update).
_FUSED, _LOOPED = 28, 88


def on_cores(graph: StepGraph, platform: Platform, library: str) -> StepGraph:
    """Put every op of a rank on one stream, where the ranks of the platform are cores."""
    if not platform.require_device().is_core:
        return graph
    steps = []
    for step in graph.steps:
        own = _as_torch(step, platform, library) if graph.is_generated else step
        steps.append(replace(own, ops=tuple(_in_turn(op) for op in own.ops)))
    return replace(graph, steps=tuple(steps))


def _in_turn(op: Op) -> Op:
    """Move an op to the compute stream, but no message: pipeline stages would wait forever."""
    message = op.collective is not None and op.collective.kind in ("send", "recv")
    return op if message or op.kind == "host" else replace(op, stream=COMPUTE)


def _as_torch(step: RankStep, platform: Platform, library: str) -> RankStep:
    """Write down what torch does on a CPU and generators leave out."""
    place: dict[int, int] = {}
    ops: list[Op] = []
    for number, op in enumerate(step.ops):
        ops += _added(op, platform, library)
        place[number] = len(ops)
        ops.append(replace(_looped(op), after=tuple(place[each] for each in op.after)))
    return replace(step, ops=tuple(ops))


def _added(op: Op, platform: Platform, library: str) -> Iterator[Op]:
    """Yield the copies of gradients that DDP makes into its bucket and out of it again."""
    what = op.collective
    if what is None or what.kind != "all_reduce" or op.phase != "backward":
        return
    if what.group == "tp":  # activations of a layer, not gradients
        return
    if platform.torch is not None and library in platform.torch.ddp:
        ddp = platform.torch.ddp[library]
        seconds = ddp.step + ddp.byte * what.nbytes
        yield Op("ddp", "host", seconds=seconds, phase="backward")
    else:
        # In and out of the bucket, each a read and a write.
        cost = Cost("copy", (), what.dtype, 0.0, 4 * what.nbytes)
        yield Op("copies of DDP", cost=cost, phase="backward")


def _looped(op: Op) -> Op:
    if op.name != "adamw" or op.cost is None:
        return op
    return replace(op, cost=replace(op.cost, nbytes=op.cost.nbytes * _LOOPED // _FUSED))
