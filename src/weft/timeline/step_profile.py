"""A step as a list of device ops, whatever its source, and the comparison of two steps.

A StepProfile is built from a predicted, planned or measured Timeline, or from a recorded trace. Ops
of two profiles are compared by name: how often they ran, for how long, and how much was exposed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

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
        ends = [timeline.of(rank=rank).makespan for rank in timeline.ranks.tolist()]
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


@dataclass(frozen=True, slots=True)
class OpChange:
    """How the ops of one name changed: count, duration, exposed time."""

    name: str
    kind: OpKind
    count: tuple[int, int]
    seconds: tuple[float, float]
    exposed: tuple[float, float]

    @property
    def difference(self) -> float:
        """The increase in seconds."""
        return self.seconds[1] - self.seconds[0]

    def as_row(self) -> dict[str, Any]:
        """Return a row with the keys of ``weft diff``."""
        return {
            "name": self.name,
            "kind": self.kind,
            "count_before": self.count[0],
            "count_after": self.count[1],
            "before": self.seconds[0],
            "after": self.seconds[1],
            "difference": self.difference,
            "exposed_before": self.exposed[0],
            "exposed_after": self.exposed[1],
        }


@dataclass(frozen=True)
class StepDiff:
    """Two profiles of a step and their differences, the largest first."""

    before: StepProfile
    after: StepProfile
    changes: tuple[OpChange, ...]

    def __repr__(self) -> str:
        return f"<StepDiff of {self.before.label} and {self.after.label}>"

    @property
    def matched(self) -> float:
        """The fraction of the ops of both that have a counterpart in the other."""
        both = sum(2 * min(change.count) for change in self.changes)
        return both / max(1, len(self.before.ops) + len(self.after.ops))


def diff(before: StepProfile, after: StepProfile) -> StepDiff:
    """Compare two profiles of the same step."""
    sides = [_by_name(profile) for profile in (before, after)]
    names = dict.fromkeys(name for side in sides for name in side)
    changes = []
    for name in names:
        one, other = (side.get(name, _Sum()) for side in sides)
        changes.append(
            OpChange(
                name,
                one.kind or other.kind or "compute",
                (one.count, other.count),
                (one.seconds, other.seconds),
                (one.exposed, other.exposed),
            )
        )
    changes.sort(key=lambda change: -abs(change.difference))
    return StepDiff(before, after, tuple(changes))


@dataclass
class _Sum:
    kind: OpKind | None = None
    count: int = 0
    seconds: float = 0.0
    exposed: float = 0.0


def _by_name(profile: StepProfile) -> dict[str, _Sum]:
    found: dict[str, _Sum] = defaultdict(_Sum)
    for op, exposed in zip(profile.ops, profile.exposed, strict=True):
        each = found[op.name]
        each.kind = op.kind
        each.count += 1
        each.seconds += op.seconds
        each.exposed += exposed
    return dict(found)
