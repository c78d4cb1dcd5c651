"""A recorded step as a workload: what was launched, on which streams, behind what, by which host.

```
 mark | issue a | wait | issue b | input       the host: a mark, its calls, what it does until the
        a ------          b ----               next step begins
```

One rank's trace stands for all ranks of its groups: each does the same. Traces of several ranks
are a class of ranks each, joined by the collectives that all of them show.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from weft.hardware import Device
from weft.schedule import Cost
from weft.schedule.values import Group
from weft.step import Collective, Op, RankStep, StepGraph
from weft.step.step_graph import COLLECTIVES, WORLD, OpKind
from weft.trace import EventKind
from weft.trace import TracedCollective as RecordedCollective
from weft.trace.analysis.kernel_slowdown import is_gemm_name
from weft.trace.recorded.calls import BACKLOG, Calls, Floats
from weft.trace.recorded.order import Order
from weft.trace.recorded.overheads import HostOverheads

MARK = "step"  # the host's op with which an iteration begins
INPUT = "input"  # what the host does from its last call to the next step
LEAST = 1e-9  # seconds of a mark, so that it is there
# Share of the memory's rate at which a kernel streams whose operands the trace does not tell.
_STREAMS = 0.7


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One rank's step: how it is put together, how long its work takes, what it communicates.

    ``seconds`` and ``waited`` are by call: how long what it launched took, and for how much of
    that a collective waited for other ranks. ``costs`` says what kernels compute, where the trace
    tells. ``measured`` is the period of the step; ``late`` is how long after the first rank it
    begins, ``lag`` how long its device worked on after it ended.
    """

    name: str
    calls: Calls
    order: Order
    overheads: HostOverheads
    seconds: Floats
    collectives: Mapping[int, RecordedCollective]
    measured: float
    held_out: bool  # its structure and host come from other steps alone
    by_device: bool  # the measured period is that of the device, which runs behind the host
    late: float = 0.0
    lag: float = 0.0
    waited: Mapping[int, float] = field(default_factory=dict)
    waited_is_known: bool = False  # from the traces of all ranks, not estimated
    costs: Sequence[Cost | None] = ()


def graph_of(name: str, ranks: Sequence[RecordedStep], device: Device) -> StepGraph:
    """Return one iteration of a step as a StepGraph, each recorded rank a class of ranks."""
    if len(ranks) > 1:
        steps = (RankStep((n,), _ops(rank, device, None)) for n, rank in enumerate(ranks))
        return StepGraph(name, len(ranks), tuple(steps), source="trace")
    sizes = {what.num_ranks or 1 for what in ranks[0].collectives.values()}
    count = max(sizes, default=1)
    groups = {_group(size, count): Group(size) for size in sorted(sizes) if 1 < size < count}
    step = RankStep(tuple(range(count)), _ops(ranks[0], device, count))
    return StepGraph(name, count, (step,), groups, source="trace")


def _group(size: int, count: int) -> str:
    """Return the name of the group of a recorded collective."""
    return WORLD if size == count else f"{size} ranks"


def repeated(graph: StepGraph, iterations: int, late: Sequence[float]) -> StepGraph:
    """Return several iterations of a step, one behind the other, with a mark behind the last.

    So a simulation shows the period of a job whose host runs ahead of its device.
    """
    steps = (
        replace(step, ops=tuple(_repeated(step.ops, iterations, delay)))
        for step, delay in zip(graph.steps, late, strict=True)
    )
    return replace(graph, steps=tuple(steps))


def _repeated(ops: Sequence[Op], iterations: int, late: float) -> Iterator[Op]:
    yield Op("host", "host", "host", host=late)
    for number in range(iterations):
        first = number * len(ops) + 1
        for op in ops:
            yield replace(op, after=tuple(first + each for each in op.after)) if op.after else op
    yield Op(MARK, "host", "host", host=LEAST)


def _ops(rank: RecordedStep, device: Device, num_ranks: int | None) -> tuple[Op, ...]:
    """Return one iteration: work that was left from before, a mark, every call, the input.

    ``num_ranks`` are those that one trace stands for; None: collectives join all traces.
    """
    made = _Ops(rank, device, num_ranks)
    left = sum(call == BACKLOG for call in rank.calls.call)
    for number in range(len(rank.calls)):
        if number == left:
            head = made.pending + rank.overheads.head
            made.ops.append(Op(MARK, "host", "host", host=max(head, LEAST)))
            made.pending = 0.0
        made.add(number)
    made.ops.append(Op("host", "host", "host", host=made.pending))
    made.ops.append(Op(INPUT, "host", "host", host=rank.overheads.tail))
    return tuple(made.ops)


@dataclass
class _Ops:
    """The ops of an iteration as they grow; ``pending`` is host work not yet in one of them."""

    rank: RecordedStep
    device: Device
    num_ranks: int | None
    ops: list[Op] = field(default_factory=list)
    place: dict[int, int] = field(default_factory=dict)  # of the ops of calls
    pending: float = 0.0

    def add(self, number: int) -> None:
        rank, waits = self.rank, self.rank.order.host_waits[number]
        self.pending += float(rank.overheads.before[number])
        if rank.calls.row[number] >= 0:
            self._launch(number, blocking=bool(waits))
        elif waits:
            self.ops.append(Op("host", "host", "host", host=self.pending))
            after = tuple(self.place[each] for each in waits)
            self.ops.append(Op(rank.calls.call[number], "host", "host", after=after, host=0.0))
            self.pending = float(rank.overheads.inside[number])
        else:
            self.pending += float(rank.overheads.inside[number])

    def _launch(self, number: int, *, blocking: bool) -> None:
        rank, inside = self.rank, float(self.rank.overheads.inside[number])
        self.place[number] = len(self.ops)
        found = rank.collectives.get(number)
        waited = rank.waited.get(number, 0.0)
        seconds = float(rank.seconds[number])
        kind: OpKind = "kernel" if rank.calls.kind[number] == EventKind.KERNEL else "copy"
        self.ops.append(
            Op(
                name=rank.calls.name[number],
                kind="collective" if found is not None else kind,
                stream=str(rank.calls.stream[number]),
                cost=self._cost(number, seconds) if kind == "kernel" else None,
                collective=None if found is None else _described(found, self.num_ranks),
                after=tuple(self.place[each] for each in rank.order.after[number]),
                host=self.pending + (0.0 if blocking else inside),
                blocking=blocking,
                seconds=seconds - waited + rank.overheads.gap,
                waiting=waited,
                pause=float(rank.overheads.pauses[number]),
            )
        )
        self.pending = inside if blocking else 0.0

    def _cost(self, number: int, seconds: float) -> Cost:
        """Return what a kernel computes, or what one of its name and duration would."""
        known = self.rank.costs[number] if self.rank.costs else None
        tiles = max(1, ceil(self.rank.calls.waves[number] * self.device.units))
        if known is not None:
            return replace(known, tiles=tiles)
        if is_gemm_name(self.rank.calls.name[number]):
            return Cost(tiles=tiles)  # all units, and memory that its tiles share
        nbytes = round(_STREAMS * seconds * self.device.memory_rate)
        return Cost("elementwise", nbytes=nbytes, tiles=tiles)


def _described(found: RecordedCollective, num_ranks: int | None) -> Collective:
    """Return what a workload says of a collective; one that is not known whole only meets."""
    size = num_ranks and found.num_ranks
    if found.kind not in COLLECTIVES or not found.nbytes or (num_ranks and (size or 0) < 2):
        return Collective("barrier", 0, found.dtype)
    group = WORLD if num_ranks is None or size is None else _group(size, num_ranks)
    return Collective(found.kind, found.nbytes, found.dtype, group)


def seconds_like(calls: Calls, other: Calls) -> Floats:
    """Return the durations of ``other`` in the order of ``calls``.

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
