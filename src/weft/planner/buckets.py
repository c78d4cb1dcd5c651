"""Gradients in larger buckets: fewer all-reduces, each of more bytes, each ready later.

Smaller buckets are not tried: when the parts of a bucket are ready is not written down.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.workload.step import Op, Step

if TYPE_CHECKING:
    from weft.planner.candidates import CollectiveGroup
    from weft.workload import Collective, Workload

TIMES = (2, 4, 8)  # as large as they are
Place = tuple[int, int]  # class of ranks, number of the op


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A workload with larger buckets: their bytes, and of each op the ops that it was.

    ``groups`` are those of ranks whose gradients were joined: others reduce something else.
    """

    workload: Workload
    nbytes: int
    origin: dict[Place, tuple[int, ...]]
    groups: frozenset[str]

    def has(self, group: CollectiveGroup) -> bool:
        """Return whether a group reduces gradients that are in these buckets."""
        what = group.what
        return _reduces(what, group.phase) and what.group in self.groups


def with_buckets(workload: Workload, times: int) -> Bucketed | None:
    """Join every ``times`` buckets of gradients; None where there are no two to join."""
    steps, origin, groups = [], dict[Place, tuple[int, ...]](), set[str]()
    for number, step in enumerate(workload.steps):
        last = _joined(step, times)
        ops, came = _rewritten(step, last)
        steps.append(Step(step.ranks, ops))
        origin |= {(number, place): old for place, old in came.items()}
        groups |= {what.group for n in last if (what := step.ops[n].collective)}
    if not groups:
        return None
    sizes = [
        op.collective.nbytes
        for step in steps
        for op in step.ops
        if op.collective and _reduces(op.collective, op.phase) and op.collective.group in groups
    ]
    changed = replace(workload, steps=tuple(steps))
    return Bucketed(changed, max(sizes), origin, frozenset(groups))


def _reduces(what: Collective, phase: str) -> bool:
    return what.kind == "all_reduce" and phase == "backward"


def _joined(step: Step, times: int) -> dict[int, int]:
    """Give for each bucket that is joined the last one of those it goes with."""
    streams: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, op in enumerate(step.ops):
        what = op.collective
        if what is not None and _reduces(what, op.phase) and not op.blocking:
            streams[op.stream, what.group, what.dtype].append(number)
    last: dict[int, int] = {}
    for numbers in streams.values():
        for first in range(0, len(numbers), times):
            group = numbers[first : first + times]
            if len(group) > 1 and not _waited_for(step, group):
                last |= dict.fromkeys(group, group[-1])
    return last


def _waited_for(step: Step, group: list[int]) -> bool:
    """Whether something before the last of a group needs one of the others."""
    inner = set(group[:-1])
    return any(inner & set(op.after) for op in step.ops[group[0] : group[-1]])


def _rewritten(
    step: Step, last: dict[int, int]
) -> tuple[tuple[Op, ...], dict[int, tuple[int, ...]]]:
    """Write the ops without those that were joined; say of each which ops it was."""
    members: dict[int, list[int]] = defaultdict(list)
    for number, until in last.items():
        members[until].append(number)
    ops: list[Op] = []
    place: dict[int, int] = {}
    came: dict[int, tuple[int, ...]] = {}
    for number, op in enumerate(step.ops):
        if last.get(number, number) != number:
            continue
        mine = tuple(members.get(number, [number]))
        place |= dict.fromkeys(mine, len(ops))
        came[len(ops)] = mine
        needed = {place[each] for old in mine for each in step.ops[old].after if each in place}
        needed -= {len(ops)}  # the next bucket of a group may wait for the one before it
        ops.append(_as_one(op, [step.ops[old] for old in mine], tuple(sorted(needed))))
    return tuple(ops), came


def _as_one(op: Op, parts: list[Op], after: tuple[int, ...]) -> Op:
    if len(parts) == 1 or op.collective is None:
        return replace(op, after=after)
    nbytes = sum(part.collective.nbytes for part in parts if part.collective is not None)
    return replace(op, after=after, collective=replace(op.collective, nbytes=nbytes))
