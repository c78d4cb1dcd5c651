"""A recorded step as a Workload: what was launched, on which streams, behind what, by which host.

Several iterations stand one behind the other, so that a simulation shows the period of a job whose
host runs ahead of its device. Each begins with a mark on the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from weft.schedule import Cost
from weft.trace import EventKind
from weft.workload import Collective, Op, Step, Workload
from weft.workload.step import COLLECTIVES, OpKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weft.trace import TracedCollective as Recorded
    from weft.whatif.calls import Calls, Floats
    from weft.whatif.order import Order
    from weft.whatif.overheads import Overheads

MARK = "step"  # the host's op with which an iteration begins
_LEAST = 1e-9  # seconds of a mark, so that it is there


@dataclass(frozen=True, slots=True)
class Recording:
    """One rank's step: how it is put together, how long its work takes, what it communicates.

    ``seconds`` are by call, of what it launched; ``collectives`` by call too. ``late`` is how long
    after the first rank it begins, ``lag`` how long its device worked on after it ended.
    """

    calls: Calls
    order: Order
    overheads: Overheads
    seconds: Floats
    collectives: Mapping[int, Recorded] = field(default_factory=dict)
    late: float = 0.0
    lag: float = 0.0


def workload_of(name: str, ranks: Sequence[Recording], units: int, iterations: int) -> Workload:
    """Give so many iterations of a step as one Workload, rank by rank."""
    steps = (
        Step((number,), tuple(_repeated(_ops(rank, units), iterations, rank.late)))
        for number, rank in enumerate(ranks)
    )
    return Workload(name, len(ranks), tuple(steps), source="trace")


def _repeated(ops: Sequence[Op], iterations: int, late: float) -> Iterator[Op]:
    yield Op("host", "host", "host", host=late)
    for number in range(iterations):
        first = number * len(ops) + 1
        for op in ops:
            yield replace(op, after=tuple(first + each for each in op.after)) if op.after else op
    yield Op(MARK, "host", "host", host=_LEAST)


def _ops(rank: Recording, units: int) -> list[Op]:
    """Give the ops of one iteration, the host's own work gathered between them."""
    made = _Ops(rank, units)
    for number in range(len(rank.calls)):
        made.add(number)
    first = Op(MARK, "host", "host", host=max(rank.overheads.head, _LEAST))
    return [first, *made.ops, Op("host", "host", "host", host=made.pending + rank.overheads.tail)]


@dataclass
class _Ops:
    """The ops of an iteration as they grow; ``pending`` is host work not yet in one of them."""

    rank: Recording
    units: int
    ops: list[Op] = field(default_factory=list)
    place: dict[int, int] = field(default_factory=dict)  # of the ops of calls
    pending: float = 0.0

    def add(self, number: int) -> None:
        over, waits = self.rank.overheads, self.rank.order.host_waits[number]
        self.pending += float(over.before[number])
        if self.rank.calls.row[number] >= 0:
            self._launch(number, blocking=bool(waits))
        elif waits:
            self._wait(number, waits)
        else:
            self.pending += float(over.inside[number])

    def _launch(self, number: int, *, blocking: bool) -> None:
        rank, inside = self.rank, float(self.rank.overheads.inside[number])
        self.place[number] = len(self.ops) + 1  # the mark stands in front of all
        found = rank.collectives.get(number)
        op = Op(
            name=rank.calls.name[number],
            kind=_kind(int(rank.calls.kind[number]), found),
            stream=str(rank.calls.stream[number]),
            cost=Cost(tiles=max(1, ceil(rank.calls.waves[number] * self.units))),
            collective=None if found is None else described(found),
            after=tuple(self.place[each] for each in rank.order.after[number]),
            host=self.pending + (0.0 if blocking else inside),
            blocking=blocking,
            seconds=float(rank.seconds[number]) + rank.overheads.gap,
        )
        self.ops.append(op)
        self.pending = inside if blocking else 0.0

    def _wait(self, number: int, waits: tuple[int, ...]) -> None:
        self.ops.append(Op("host", "host", "host", host=self.pending))
        after = tuple(self.place[each] for each in waits)
        name = self.rank.calls.call[number]
        self.ops.append(Op(name, "host", "host", after=after, host=0.0))
        self.pending = float(self.rank.overheads.inside[number])


def _kind(kind: int, found: Recorded | None) -> OpKind:
    if found is not None:
        return "collective"
    return "kernel" if kind == EventKind.KERNEL else "copy"


def described(found: Recorded) -> Collective:
    """Give what a workload says of a collective; one of which a trace tells no kind only meets."""
    kind = found.kind if found.kind in COLLECTIVES else "barrier"
    return Collective(kind, found.nbytes or 0, found.dtype)


def seconds_like(calls: Calls, other: Calls) -> Floats:
    """Give the durations of ``other`` in the order of ``calls``.

    Work is the same if it has the same name and stream and is the same of its kind, counted from
    the start of the step. What ``other`` does not have keeps the duration it has in ``calls``.
    """
    if calls.signature == other.signature:
        return other.seconds
    found = dict(zip(_counted(other), other.seconds[other.launches].tolist(), strict=True))
    own = calls.seconds
    out = own.copy()
    for number, key in zip(calls.launches.tolist(), _counted(calls), strict=True):
        out[number] = found.get(key, own[number])
    return np.asarray(out)


def _counted(calls: Calls) -> Iterator[tuple[str, int, int]]:
    seen: dict[tuple[str, int], int] = {}
    for number in calls.launches.tolist():
        key = calls.name[number], int(calls.stream[number])
        seen[key] = seen.get(key, 0) + 1
        yield *key, seen[key]
