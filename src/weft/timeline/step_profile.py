"""A step as a list of device ops, whatever its source.

A StepProfile is built from a predicted, planned or measured Timeline, or from a recorded trace;
``step_diff.py`` compares two of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from weft.schedule import CommandKind
from weft.timeline.intervals import IntervalSet
from weft.timeline.timeline import MOVES, Activity, Basis, Timeline

OpKind = Literal["compute", "communication"]


@dataclass(frozen=True, slots=True)
class OpSpan:
    """One op on the device: a kernel, copy or collective; seconds from the step's start."""

    name: str
    kind: OpKind
    stream: str
    start: float
    end: float
    family: str = ""  # of kernels, as in the kernel table of a trace
    shape: str = ""  # of the inputs, if known

    @property
    def seconds(self) -> float:
        """Its duration in seconds."""
        return self.end - self.start


@dataclass(frozen=True)
class StepProfile:
    """The ops of one step on one rank, by start; ``seconds`` is its period or makespan."""

    label: str
    basis: Basis
    seconds: float
    ops: tuple[OpSpan, ...]

    def __repr__(self) -> str:
        return f"<StepProfile of {self.label}: {len(self.ops)} ops, {self.seconds:.6g} s>"

    @classmethod
    def of_timeline(cls, timeline: Timeline, label: str = "") -> StepProfile:
        """Return the profile of the rank that ends last."""
        ends = np.zeros(len(timeline.ranks))
        np.maximum.at(ends, np.searchsorted(timeline.ranks, timeline.rank), timeline.end)
        mine = timeline.of(rank=int(timeline.ranks[int(np.argmax(ends))]))
        kinds: dict[int, OpKind] = {
            int(Activity.COMPUTATION): "compute",
            int(Activity.COMMUNICATION): "communication",
        }
        ops = [
            OpSpan(span.name, kinds[int(activity)], span.queue, span.start, span.end)
            for span, activity in zip(mine.spans(), mine.activity.tolist(), strict=True)
            if activity in kinds
            and span.kind in (CommandKind.KERNEL, *MOVES)
            and span.end > span.start
        ]
        return cls(label or timeline.schedule, timeline.basis, timeline.makespan, by_start(ops))

    def cover(self, kind: OpKind) -> IntervalSet:
        """Return when ops of a kind ran."""
        mine = [op for op in self.ops if op.kind == kind]
        return IntervalSet.of([op.start for op in mine], [op.end for op in mine])

    @cached_property
    def totals(self) -> dict[str, float]:
        """Seconds of the step by activity; exposed communication is not overlapped with kernels."""
        compute, moved = self.cover("compute"), self.cover("communication")
        exposed = (moved - compute).seconds
        return {
            "step": self.seconds,
            "compute": compute.seconds,
            "communication": moved.seconds,
            "exposed": exposed,
            "idle": max(0.0, self.seconds - compute.seconds - exposed),
        }

    @cached_property
    def exposed(self) -> tuple[float, ...]:
        """Seconds of each op that no kernel overlaps; zero for kernels."""
        compute = self.cover("compute")
        start, end = (np.array([getattr(op, side) for op in self.ops]) for side in ("start", "end"))
        alone = end - start - compute.within(start, end) if len(self.ops) else start
        moves = (op.kind == "communication" for op in self.ops)
        return tuple(max(0.0, float(s)) if m else 0.0 for s, m in zip(alone, moves, strict=True))


def by_start(ops: Iterable[OpSpan]) -> tuple[OpSpan, ...]:
    """Return ops sorted by start."""
    return tuple(sorted(ops, key=lambda op: (op.start, op.end)))
