"""The rows of a step for the native simulator: which op follows which, and which ranks meet.

```
 host      issue a | issue b | issue c ..          one thread a class of ranks
 compute            a ------|  b -------------|    kernels
 comm               wait(a)  [ c ............ ]    a collective: a launch around one flow
```

Each class of equal ranks is laid out once. Its host issues ops in order; streams run what was
issued to them, wait for each other by flags, and the members of a collective meet by flags, so
that waiting is told from moving.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weft.hardware import Device
    from weft.step import HostModel, Op, StepGraph
    from weft.step.matching import MatchedCollective

Place = tuple[int, int]  # class of ranks, number of the op
FLOW, SIGNAL, WAIT, LAUNCH, SUBMIT, NOTHING = range(6)  # as simulation.hpp numbers them


@dataclass
class LayoutRows:
    """The rows of all threads as they grow, and the threads. -1 stands for none."""

    step: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    flag: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)  # of a launch: its thread, or -1
    num_threads: int = 0
    thread_launch: list[int] = field(default_factory=list)
    thread_class: list[int] = field(default_factory=list)
    thread_fed: list[int] = field(default_factory=list)

    def new_thread(self, number: int, launch: int = -1) -> int:
        """Add a thread of a class of ranks, or the lane of a launch."""
        self.thread_launch.append(launch)
        self.thread_class.append(number)
        self.thread_fed.append(0)
        self.num_threads += 1
        return self.num_threads - 1

    def add(
        self,
        step: int,
        thread: int,
        before: float = 0.0,
        *,
        flag: int = -1,
        count: int = 0,
        target: int = -1,
        latency: float = 0.0,
        fed: bool = True,
    ) -> int:
        """Add a row behind the last one of its thread; ``fed`` rows wait to be handed over."""
        self.step.append(step)
        self.thread.append(thread)
        self.before.append(before)
        self.latency.append(latency)
        self.flag.append(flag)
        self.count.append(count)
        self.target.append(target)
        self.lane.append(-1)
        self.fed.append(self.thread_fed[thread] if fed else -1)
        if fed:
            self.thread_fed[thread] += 1
        return len(self.step) - 1


class StepLayout:
    """The rows of one step, and where each op stands in them.

    ``row`` is the flow of an op, ``launch_row`` the launch around that of a collective,
    ``issue_row`` what the host does for it, ``waiting_row`` where a recorded collective waits for
    ranks that no trace shows. ``pauses`` are the seconds by which the stream idles
    before a row.
    """

    def __init__(
        self,
        graph: StepGraph,
        device: Device,
        host: HostModel,
        met: Mapping[Place, MatchedCollective],
    ) -> None:
        self.graph, self.device, self.model, self.met = graph, device, host, met
        self.rows = LayoutRows()
        self.row: dict[Place, int] = {}
        self.launch_row: dict[Place, int] = {}
        self.issue_row: dict[Place, int] = {}
        self.waiting_row: dict[Place, int] = {}
        self.pauses: dict[int, float] = {}
        self.streams: list[dict[str, int]] = []  # by class of ranks, the thread of each stream
        last = max((matched.number for matched in met.values()), default=-1)
        self.num_flags = (last + 1) * len(graph.steps)
        for number in range(len(graph.steps)):
            self._lay_out(number)

    def _lay_out(self, number: int) -> None:
        step, rows = self.graph.steps[number], self.rows
        ops = step.ops
        host = rows.new_thread(number)
        streams: dict[str, int] = {}
        for op in ops:
            if op.kind != "host" and op.stream not in streams:
                streams[op.stream] = rows.new_thread(number)
        self.streams.append(streams)
        flags = self._flagged(ops)
        seen_by_host = {n for op in ops if op.kind == "host" for n in op.after}
        # A signal to the host crosses PCIe or the fabric; one between streams stays on the device.
        seen_by_host |= {n for n, op in enumerate(ops) if self._host_waits(op)}
        seen: dict[tuple[int, str], int] = {}
        for n, op in enumerate(ops):
            if op.kind == "host":
                self._waits(ops, op, host, None, flags, seen, fed=False)
                own = self.model.seconds(op) + (op.seconds or 0.0)
                self.issue_row[number, n] = rows.add(NOTHING, host, own, fed=False)
                continue
            thread, first = streams[op.stream], rows.thread_fed[streams[op.stream]]
            self._waits(ops, op, thread, op.stream, flags, seen)
            self._meet(number, n, thread)
            self._op(number, n, op, thread)
            if n in flags:
                latency = self._to_host() if n in seen_by_host else 0.0
                rows.add(SIGNAL, thread, flag=flags[n], latency=latency)
            # The stream can run the op only when the host has called and the launch has been
            # submitted.
            own = self.model.seconds(op) + self.device.host_launch
            count = rows.thread_fed[thread] - first
            self.issue_row[number, n] = rows.add(
                SUBMIT, host, own, target=thread, count=count, fed=False
            )
            if self._host_waits(op):
                rows.add(WAIT, host, flag=flags[n], count=1, fed=False)

    def _to_host(self) -> float:
        return self.device.dma.sync if self.device.dma is not None else 0.0

    def _host_waits(self, op: Op) -> bool:
        return op.blocking or (self.model.waits and op.kind == "kernel")

    def _flagged(self, ops: tuple[Op, ...]) -> dict[int, int]:
        """Number the ops whose end another stream or the host waits for."""
        wanted = {
            earlier
            for op in ops
            for earlier in op.after
            if ops[earlier].kind != "host"
            and (op.kind == "host" or ops[earlier].stream != op.stream)
        }
        wanted |= {n for n, op in enumerate(ops) if op.kind != "host" and self._host_waits(op)}
        flags = {n: self.num_flags + index for index, n in enumerate(sorted(wanted))}
        self.num_flags += len(wanted)
        return flags

    def _waits(
        self,
        ops: tuple[Op, ...],
        op: Op,
        thread: int,
        stream: str | None,
        flags: Mapping[int, int],
        seen: dict[tuple[int, str], int],
        *,
        fed: bool = True,
    ) -> None:
        """Wait for the last op that is needed of each other stream, unless it was waited for.

        The host has no stream: it waits for all of them.
        """
        latest: dict[str, int] = {}
        for earlier in op.after:
            if earlier in flags:
                other = ops[earlier].stream
                latest[other] = max(latest.get(other, -1), earlier)
        for other, earlier in latest.items():
            if other != stream and seen.get((thread, other), -1) < earlier:
                seen[thread, other] = earlier
                self.rows.add(WAIT, thread, flag=flags[earlier], count=1, fed=fed)

    def _meet(self, number: int, n: int, thread: int) -> None:
        """Signal the other classes of a collective, and wait for them."""
        matched, rows = self.met.get((number, n)), self.rows
        if matched is None or len(matched.classes) < 2:
            return
        first = matched.number * len(self.graph.steps)
        others = [other for other in matched.classes if other != number]
        for other in others:
            # One flag for each collective and class; members of one class are equal and arrive
            # together.
            rows.add(SIGNAL, thread, flag=first + other, latency=self.device.signal)
        rows.add(WAIT, thread, flag=first + number, count=len(others))

    def _op(self, number: int, n: int, op: Op, thread: int) -> None:
        rows, before = self.rows, self.device.launch + op.pause
        first = len(rows.step)
        if op.pause:
            self.pauses[first] = op.pause
        if op.collective is None:
            self.row[number, n] = rows.add(FLOW, thread, before)
            return
        # A launch holds the units of a collective's kernel from its start, while its lane waits
        # and moves the bytes.
        launch = rows.add(LAUNCH, thread, before)
        rows.lane[launch] = rows.new_thread(number, launch)
        self.launch_row[number, n] = launch
        if op.waiting:  # its kernel holds units and spins until the other ranks have come
            wait = rows.add(NOTHING, rows.lane[launch], op.waiting, fed=False)
            self.waiting_row[number, n] = wait
        self.row[number, n] = rows.add(FLOW, rows.lane[launch], fed=False)

    def columns(self) -> dict[str, Any]:
        """Return the columns that no run changes."""
        rows, count = self.rows, len(self.rows.step)
        thread = np.array(rows.thread, np.int32)
        order = np.argsort(thread, kind="stable").astype(np.int32)
        # Rows were added as the host issues them; the simulator follows each thread by `next`.
        leads = np.diff(thread[order], prepend=-1) != 0
        following = np.full(count, -1, np.int32)
        following[order[:-1]] = np.where(leads[1:], -1, order[1:])
        first = np.full(rows.num_threads, -1, np.int32)
        first[thread[order][leads]] = order[leads]
        lane = np.array(rows.lane, np.int32)
        target = np.array(rows.target, np.int32)
        fed = np.zeros(rows.num_threads, np.uint8)
        fed[target[target >= 0]] = 1
        classes = len(self.graph.steps)
        return {
            "step": np.array(rows.step, np.uint8),
            "thread": thread,
            "next": following,
            "before": np.array(rows.before),
            "latency": np.array(rows.latency),
            "flag": np.array(rows.flag, np.int32),
            "count": np.array(rows.count, np.int64),
            "fed": np.array(rows.fed, np.int32),
            "target": target,
            "lanes_start": np.concatenate([[0], np.cumsum(lane >= 0)]).astype(np.int64),
            "lanes": lane[lane >= 0],
            "thread_first": first,
            "thread_launch": np.array(rows.thread_launch, np.int32),
            "thread_is_fed": fed,
            "thread_fetch": np.zeros(rows.num_threads),
            "thread_pool": np.array(rows.thread_class, np.int32),
            "thread_priority": np.zeros(rows.num_threads, np.int32),
            "pool_units": np.full(classes, self.device.units, np.int32),
            "pool_resource": np.arange(classes, dtype=np.int32),
        }
