"""From a Workload to a Schedule: host queues that feed streams, collectives that join ranks.

Each class of equal ranks becomes one rank of the Schedule. Its host issues the ops in order: work
of its own, then a Submit that hands the op over to a stream. Streams are joined by flags where an
op needs the end of another. The members of a collective meet by flags, one for each class that
takes part, and then a kernel runs for as long as the collective was priced: ranks with different
work wait for each other, and waiting is told from moving.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from weft.hardware.network import Level
from weft.schedule.ir import Cost, Flag, Kernel, Program, Queue, Signal, Submit, Wait
from weft.schedule.schedule import Schedule
from weft.schedule.values import SELF
from weft.workload.host import HostModel
from weft.workload.meeting import Meeting, meetings
from weft.workload.step import Collective, Op, Step, Workload, check

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.schedule.ir import Command

# Families of kernels whose seconds are known: by the first a Timeline knows that one moves data.
LIBRARY, PRICED = "library", "priced"


class Prices(Protocol):
    """What a lowering asks: how long kernels and collectives take by themselves."""

    def kernel(self, cost: Cost) -> float:
        """Give the seconds of a kernel on an idle device."""

    def collective(self, what: Collective, ranks: tuple[int, ...]) -> float:
        """Give the seconds of a collective of ``ranks`` that have all come."""


def lower(
    workload: Workload, platform: Platform, prices: Prices, *, host: HostModel | None = None
) -> Schedule:
    """Make the Schedule of one step, one rank for each class, to run on ``stage``."""
    check(workload)
    met = meetings(workload)
    model = host or host_of(platform)
    device = platform.require_device()
    programs, most = [], 0
    for number, step in enumerate(workload.steps):
        lowering = _Lowering(number, step, met, prices, model, device.launch)
        programs.append(lowering.program())
        most = max(most, lowering.num_flags)
    return Schedule(workload.name, len(programs), tuple(programs), (), max(most, 1))


def host_of(platform: Platform) -> HostModel:
    """Give the host of a platform: cores carry out an op before the next one is issued."""
    waits, own = platform.require_device().is_core, platform.torch
    if own is None:
        return HostModel(waits=waits)
    none = {"before": 0.0, "after": 0.0, "collective": 0.0}
    return HostModel(
        own.forward, **none, waits=waits, backward=own.backward, optimizer=own.optimizer
    )


def stage(platform: Platform, workload: Workload) -> Platform:
    """Give the platform of the classes: what they send each other is in the prices already."""
    level = Level("switch", len(workload.steps), platform.levels[0].rate)
    return replace(platform, levels=(level,), node_levels=1, sources={})


def queues_of(step: Step) -> dict[str, str]:
    """Give the queue of each stream of a step, numbered as they come: the first is stream0.

    The k-th kernel of a queue is the k-th op of its stream.
    """
    streams = dict.fromkeys(op.stream for op in step.ops if op.kind != "host")
    return {name: f"stream{number}" for number, name in enumerate(streams)}


@dataclass
class _Lowering:
    """The queues of one class, as they grow."""

    rank: int
    step: Step
    met: dict[tuple[int, int], Meeting]
    prices: Prices
    model: HostModel
    launch: float
    host: list[Command] = field(default_factory=list)
    streams: dict[str, list[Command]] = field(default_factory=lambda: defaultdict(list))
    flags: dict[int, int] = field(default_factory=dict)  # of the ops whose end is signalled
    seen: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def num_flags(self) -> int:
        return _num_meetings(self.met) + len(self.flags)

    def program(self) -> Program:
        queues = queues_of(self.step)
        self._signalled()
        for number, op in enumerate(self.step.ops):
            if op.kind == "host":
                self._on_host(op)
            else:
                self._on_stream(number, op, queues[op.stream])
        made = [Queue("host", tuple(self.host))] if self.host else []
        made += [Queue(name, tuple(commands)) for name, commands in self.streams.items()]
        return Program((self.rank,), tuple(made))

    def _signalled(self) -> None:
        """Number the ops that another stream or the host waits for."""
        ops, first = self.step.ops, _num_meetings(self.met)
        wanted = {
            earlier
            for op in ops
            for earlier in op.after
            if ops[earlier].kind != "host" and (op.kind == "host" or _apart(op, ops[earlier]))
        }
        wanted |= {number for number, op in enumerate(ops) if self._host_waits(op)}
        self.flags = {number: first + index for index, number in enumerate(sorted(wanted))}

    def _host_waits(self, op: Op) -> bool:
        return op.kind != "host" and (op.blocking or (self.model.waits and op.kind == "kernel"))

    def _on_host(self, op: Op) -> None:
        self.host += self._waits("host", op)
        own = self.model.seconds(op) + (op.seconds or 0.0)
        self._work(op.name, own)

    def _work(self, name: str, seconds: float) -> None:
        if seconds:
            self.host.append(Kernel(name, Cost("host", seconds=seconds)))

    def _on_stream(self, number: int, op: Op, queue: str) -> None:
        commands = [*self._waits(queue, op), *self._meet(number), self._kernel(number, op)]
        if number in self.flags:
            commands.append(Signal(Flag(SELF, self.flags[number])))
        self._work(f"issue {op.name}", self.model.seconds(op))
        self.host.append(Submit(SELF, queue, len(commands)))
        self.streams[queue] += commands
        if self._host_waits(op):
            self.host.append(Wait(Flag(SELF, self.flags[number])))

    def _waits(self, queue: str, op: Op) -> list[Command]:
        """Wait for the last op that is needed of each other stream, unless it was waited for."""
        latest: dict[str, int] = {}
        for earlier in op.after:
            if earlier in self.flags:
                stream = self.step.ops[earlier].stream
                latest[stream] = max(latest.get(stream, -1), earlier)
        found: list[Command] = []
        for stream, earlier in latest.items():
            own = queue != "host" and stream == op.stream
            if not own and self.seen.get((queue, stream), -1) < earlier:
                self.seen[queue, stream] = earlier
                found.append(Wait(Flag(SELF, self.flags[earlier])))
        return found

    def _meet(self, number: int) -> list[Command]:
        """Tell the others of a collective that we are there, and wait for them."""
        meeting = self.met.get((self.rank, number))
        if meeting is None or len(meeting.classes) < 2:
            return []
        others = [other for other in meeting.classes if other != self.rank]
        told: list[Command] = [Signal(Flag(other, meeting.number)) for other in others]
        return [*told, Wait(Flag(self.rank, meeting.number), len(others))]

    def _kernel(self, number: int, op: Op) -> Kernel:
        """Make an opaque kernel; what the device takes to start one is the simulator's."""
        family = LIBRARY if op.kind == "collective" else PRICED
        seconds = seconds_of(op, self.met.get((self.rank, number)), self.prices)
        return Kernel(op.name, Cost(family, seconds=max(seconds - self.launch, SHORTEST)))


def seconds_of(op: Op, meeting: Meeting | None, prices: Prices) -> float:
    """Give what an op takes by itself: measured, or by its price."""
    if op.seconds is not None:
        return op.seconds
    if meeting is not None:
        return prices.collective(meeting.what, meeting.ranks)
    return prices.kernel(op.cost or Cost())


SHORTEST = 1e-9  # a kernel without any seconds would be priced by its flops and bytes instead


def _apart(op: Op, other: Op) -> bool:
    return op.stream != other.stream


def _num_meetings(met: dict[tuple[int, int], Meeting]) -> int:
    return max((meeting.number for meeting in met.values()), default=-1) + 1
