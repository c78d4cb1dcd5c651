"""A step on ranks that are cores: everything that a rank does takes turns on its core.

torch carries ops out in the thread that asks for them. Collectives run in other threads, but with
as many ranks as cores these have no core of their own: what is called overlap is taking turns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.workload import Workload

COMPUTE = "compute"


def in_turns(workload: Workload, platform: Platform) -> Workload:
    """Put every op of a rank on one stream, where the ranks of the platform are cores."""
    if platform.require_device().shared is None:
        return workload
    steps = tuple(
        replace(
            step,
            ops=tuple(op if op.kind == "host" else replace(op, stream=COMPUTE) for op in step.ops),
        )
        for step in workload.steps
    )
    return replace(workload, steps=steps)
