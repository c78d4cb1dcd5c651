"""The time of a step by walking through its ops once, in the order of its hosts.

What a lowered workload does in the simulator shares nothing but queues, flags and meetings, so
its times are sums and maxima. Walking gives them exactly (a test compares the two) and some fifty
times as fast, without a Timeline: for the ends of a range, and for searches that ask often.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.errors import WorkloadError
from weft.workload.lower import SHORTEST, Prices, host_of, seconds_of
from weft.workload.meeting import meetings

if TYPE_CHECKING:
    from weft.hardware import Device, Platform
    from weft.workload.host import HostModel
    from weft.workload.meeting import Meeting
    from weft.workload.step import Op, Step, Workload

Met = dict[tuple[int, int], "Meeting"]


def walk(
    workload: Workload,
    platform: Platform,
    prices: Prices,
    *,
    host: HostModel | None = None,
    met: Met | None = None,
) -> list[float]:
    """Give the end of each class of ranks; ``met`` are its meetings, where they are known."""
    return [each.end for each in walked(workload, platform, prices, host=host, met=met)]


def walked(
    workload: Workload,
    platform: Platform,
    prices: Prices,
    *,
    host: HostModel | None = None,
    met: Met | None = None,
) -> list[Walker]:
    """Walk through a step and give each class of ranks with the times of its ops."""
    met = meetings(workload) if met is None else met
    model, device = host or host_of(platform), platform.require_device()
    came: dict[int, dict[int, float]] = {}
    walkers = [
        Walker(number, step, met, prices, model, device, came)
        for number, step in enumerate(workload.steps)
    ]
    while sum(walker.go() for walker in walkers):
        pass
    if any(not walker.done for walker in walkers):
        raise WorkloadError(
            f"ranks of {workload.name} wait for each other and none can go on.",
            "Collectives of the same ranks must come in the same order on all of them.",
        )
    return walkers


@dataclass
class Walker:
    """One class of ranks on its way: a host that issues, streams that follow when they can.

    ``issues`` has for each op when its host began and ended to issue it, ``starts`` when it could
    have run but for other ranks and when it did, ``ends`` when it had.
    """

    number: int
    step: Step
    met: Met
    prices: Prices
    model: HostModel
    device: Device
    came: dict[int, dict[int, float]]  # by meeting, when each class was there
    place: int = 0
    host: float = 0.0
    stalled: int = -1  # the op whose end the host waits for
    front: dict[str, float] = field(default_factory=dict)
    issued: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    issues: dict[int, tuple[float, float]] = field(default_factory=dict)
    starts: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether every op has ended."""
        return len(self.ends) == len(self.step.ops)

    @property
    def end(self) -> float:
        """When the last op, or the host, has ended."""
        return max((self.host, *self.front.values()))

    def go(self) -> bool:
        """Go on until nothing can; tell whether anything was done."""
        before = len(self.ends), self.place
        while self._issue() | self._follow():
            pass
        return (len(self.ends), self.place) != before

    def _issue(self) -> bool:
        """Let the host issue ops until it has to wait for one."""
        start = self.place
        while self.place < len(self.step.ops) and self._released():
            op = self.step.ops[self.place]
            if op.kind == "host":
                if not self._host_op(op):
                    break
            else:
                before = self.host
                self.host += self.model.seconds(op) + self.device.host_launch
                self.issues[self.place] = before, self.host
                self.issued.setdefault(op.stream, deque()).append((self.place, self.host))
                if op.blocking or (self.model.waits and op.kind == "kernel"):
                    self.stalled = self.place
            self.place += 1
        return self.place > start

    def _released(self) -> bool:
        if self.stalled >= 0:
            if self.stalled not in self.ends:
                return False
            self._look(self.ends[self.stalled])
            self.stalled = -1
        return True

    def _host_op(self, op: Op) -> bool:
        needed = [n for n in op.after if self.step.ops[n].kind != "host"]
        if any(n not in self.ends for n in needed):
            return False
        if needed:
            self._look(max(self.ends[n] for n in needed))
        before = self.host
        self.host += self.model.seconds(op) + (op.seconds or 0.0)
        self.issues[self.place] = before, self.host
        self.ends[self.place] = self.host
        return True

    def _look(self, when: float) -> None:
        """Let the host see that something on the device has ended."""
        sync = self.device.dma.sync if self.device.dma is not None else 0.0
        self.host = max(self.host, when + sync)

    def _follow(self) -> bool:
        """Let streams carry out what was issued and has what it needs."""
        before = len(self.ends)
        for stream, queue in self.issued.items():
            while queue and self._one(stream, *queue[0]):
                queue.popleft()
        return len(self.ends) > before

    def _one(self, stream: str, number: int, issued: float) -> bool:
        op = self.step.ops[number]
        if any(n not in self.ends for n in op.after):
            return False
        ready = max(issued, self.front.get(stream, 0.0), *(self.ends[n] for n in op.after))
        meeting = self.met.get((self.number, number))
        start = self._meet(meeting, ready)
        if start is None:
            return False
        launch = self.device.launch
        seconds = max(seconds_of(op, meeting, self.prices) - launch, SHORTEST)
        self.starts[number] = ready, start
        self.ends[number] = self.front[stream] = start + launch + seconds
        return True

    def _meet(self, meeting: Meeting | None, ready: float) -> float | None:
        """Give when all have come; one of another class is heard of a signal later."""
        if meeting is None or len(meeting.classes) < 2:
            return ready
        came = self.came.setdefault(meeting.number, {})
        came[self.number] = ready
        if len(came) < len(meeting.classes):
            return None
        others = max(when for who, when in came.items() if who != self.number)
        return max(ready, others + self.device.signal)
