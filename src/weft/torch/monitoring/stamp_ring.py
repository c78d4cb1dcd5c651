"""Stamps of collectives: when they started and ended, and what the rank did before.

On the CPU, times are those of the clock that all processes of a host share, and a rank was busy as
long as its thread used the CPU. On a GPU, CUDA events around the collective give its times; the GPU
was busy if the collective had been launched before it could start.
"""

import threading
import time
from collections import defaultdict, deque
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from weft.torch.backend.c10d_work import PendingWork
from weft.trace.live.job_window import KINDS, STAMP, group_number

_KIND = {kind: number for number, kind in enumerate(KINDS)}
_LAST_SEQUENCE = 0xFFFFFFFF  # then 0: stamps have 32 bits, for months of collectives
_POLL = 0.001  # seconds between two looks at whether a collective of Gloo has ended
_RENEWED, _AT_ONCE = 5_000_000_000, 2_000_000  # nanoseconds: age of a base, wait for a new one
_QUEUED = 100_000  # nanoseconds from the call to the start on the GPU: it had work to do first


class _Stamp:
    """One collective that has started."""

    __slots__ = ("busy", "end", "group", "idle", "kind", "nbytes", "sequence", "start", "work")

    def __init__(self, group: int, sequence: int, kind: int, nbytes: int, start: Any) -> None:
        self.group, self.sequence, self.kind, self.nbytes = group, sequence, kind, nbytes
        self.start: Any = start  # nanoseconds, or an event until it has passed
        self.end: Any = None
        self.work: Any = None
        self.busy = self.idle = 0


class StampRing:
    """The newest stamps of a rank: an observer of collectives. The oldest are dropped and counted.

    Threads: any thread may issue collectives and complete them, one other takes the stamps.
    """

    def __init__(self, size: int = 4096, only: Any = None) -> None:
        self._stamps: deque[_Stamp] = deque()
        self._size, self._only = size, only
        self._sequence: dict[int, int] = defaultdict(int)
        self._numbers: dict[str, int] = {}
        self.groups: dict[int, tuple[str, list[int]]] = {}
        self.dropped = 0
        self._last = threading.local()
        self._gpu: _GpuClock | None = None
        self._held: list[Any] = []
        self._waited: SimpleQueue[_Stamp | None] = SimpleQueue()
        self._waiter: threading.Thread | None = None

    def started(self, kind: str, nbytes: int, group: Any, *, on_gpu: bool) -> "_Stamp | None":
        """Stamp the start of a collective."""
        number = _KIND.get(kind)
        if number is None or (self._only is not None and group is not self._only):
            return None
        name = group.group_name
        place = self._numbers.get(name)
        if place is None:
            place = self._known(name, group)
        self._sequence[place] = (self._sequence[place] + 1) & _LAST_SEQUENCE
        if on_gpu:
            clock = self._gpu = self._gpu or _GpuClock()
            stamp = _Stamp(place, self._sequence[place], number, nbytes, clock.event())
            stamp.idle = time.monotonic_ns()  # of the call, until the events are read
        else:
            cpu, now = time.thread_time_ns(), time.monotonic_ns()
            stamp = _Stamp(place, self._sequence[place], number, nbytes, now)
            before, used = getattr(self._last, "value", (None, cpu))
            since = now if before is None else (before.end or before.start)
            stamp.busy = max(min(cpu - used, now - since), 0)
            stamp.idle = max(now - since - stamp.busy, 0)
            self._last.value = (stamp, cpu)
        if len(self._stamps) >= self._size:
            self._held.append(self._stamps.popleft().work)
            self.dropped += 1
        self._stamps.append(stamp)
        return stamp

    def issued(self, token: _Stamp, work: Any) -> None:
        """Stamp the end of a collective, now or when its work is done."""
        if work is None:
            token.end = time.monotonic_ns()
            return
        token.work = work
        if isinstance(token.start, int) and not isinstance(work, PendingWork):
            # A Python callback of a C++ work would run and be destroyed in a thread of Gloo, which
            # then needs the GIL while others hold it and wait for Gloo: a thread of ours looks.
            if self._waiter is None:
                self._waiter = threading.Thread(target=self._wait, name="weft-stamps", daemon=True)
                self._waiter.start()
            self._waited.put(token)
            return
        clock = self._gpu if not isinstance(token.start, int) else None

        def done(_: Any) -> None:
            # With NCCL, the current stream of a callback waits for the collective.
            token.end = time.monotonic_ns() if clock is None else clock.event()

        try:
            work.get_future().add_done_callback(done)
        except RuntimeError:  # a backend whose works have no futures: the call was its end
            token.end = time.monotonic_ns()

    def _wait(self) -> None:
        """Stamp the ends of collectives in the order in which they were issued, by polling.

        A thread that blocks in ``work.wait()`` wakes up together with the thread of the job, and
        takes its core: with as many ranks as cores, steps became 5 to 10 % longer.
        """
        looked = 0
        while (token := self._waited.get()) is not None:
            while not token.work.is_completed():
                looked = time.monotonic_ns()
                time.sleep(_POLL)
            now = time.monotonic_ns()  # it ended since the last look
            token.end = (max(looked, token.start) + now) // 2

    def close(self) -> None:
        """Stop waiting for collectives; the thread ends before the interpreter does."""
        if self._waiter is not None:
            self._waited.put(None)
            self._waiter.join(timeout=5.0)

    def take(self) -> np.ndarray:
        """Return and remove the stamps of collectives that have ended.

        Their works are kept until the next call, so that no thread of Gloo drops the last reference
        to one, with its tensors, while it holds the lock of its queue.
        """
        if self._gpu is not None:
            self._gpu.renew()
        ready = []
        for _ in range(len(self._stamps)):
            stamp = self._stamps.popleft()
            done = stamp.end is not None
            if done and self._gpu is not None and not isinstance(stamp.start, int):
                done = self._gpu.read(stamp)
            if done:
                ready.append(stamp)
            else:
                self._stamps.append(stamp)
        self._held = [stamp.work for stamp in ready]
        rows = [
            (s.group, s.sequence, s.kind, s.nbytes, s.start, s.end, s.busy, s.idle) for s in ready
        ]
        return np.array(rows, STAMP)

    def _known(self, name: str, group: Any) -> int:
        number = self._numbers[name] = group_number(name)
        try:
            ranks = dist.get_process_group_ranks(group)
        except (KeyError, ValueError, RuntimeError):  # a group that torch has not registered yet
            ranks = list(range(group.size()))
        self.groups[number] = (name, ranks)
        return number


class _GpuClock:
    """Times of CUDA events on the clock of the host, from a base event at a known time.

    CUDA gives times between events as floats of milliseconds, which are a quarter of a millisecond
    apart after an hour, and the clocks of devices drift. So the base is renewed every few seconds,
    on a stream without work, if the device gets there at once.
    """

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._base = self._recorded()
        self._base.synchronize()
        self._zero = time.monotonic_ns()
        self._last_end = self._zero

    def _recorded(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def renew(self) -> None:
        """Replace the base by a new one, if it is old."""
        began = time.monotonic_ns()
        if began - self._zero < _RENEWED:
            return
        base = self._recorded()
        while not base.query():
            if time.monotonic_ns() - began > _AT_ONCE:
                return
        self._base, self._zero = base, time.monotonic_ns()

    def event(self) -> Any:
        """Return an event that was recorded on the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def read(self, stamp: Any) -> bool:
        """Replace the events of a stamp by times, if both have passed."""
        if not (stamp.start.query() and stamp.end.query()):
            return False
        called = stamp.idle
        start, end = (
            self._zero + round(self._base.elapsed_time(event) * 1e6)
            for event in (stamp.start, stamp.end)
        )
        gap = max(start - self._last_end, 0)
        queued = start - called > _QUEUED
        stamp.start, stamp.end = start, end
        stamp.busy, stamp.idle = (gap, 0) if queued else (0, gap)
        self._last_end = max(self._last_end, end)
        return True
