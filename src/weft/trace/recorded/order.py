"""What waits for what in a step, as far as a trace tells.

Work on one stream runs in order. Between streams a trace shows that somebody waits (a call such
as ``cudaStreamWaitEvent``), and for what if the profiler recorded synchronization events. If it
did not: what is waited for has ended before the waiter starts, in every step, so of each other
stream the last such work is taken. That is never too little for the steps it was seen in, and at
most what was over by then anyway.

The host waits in copies to its own pageable memory, and in calls that only wait. Those take long
when there is something to wait for, so one that was always short is no wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.trace import EventKind
from weft.trace.recorded.calls import (
    Calls,
    Floats,
    Ints,
    is_graph_launch,
    is_host_wait,
    is_stream_wait,
)

_SLACK = 1e-6  # seconds: old traces count in whole microseconds
_SHORT = 10e-6  # a call that waited for nothing


@dataclass(frozen=True, slots=True)
class Order:
    """By call: the calls whose work it comes after, and those the host waits for in it."""

    after: tuple[tuple[int, ...], ...]
    host_waits: tuple[tuple[int, ...], ...]


def order_of(steps: Sequence[Calls]) -> Order:
    """Find what waits for what in steps that ask for the same."""
    first = steps[0]
    lanes = {}
    for name in np.unique(first.stream[first.launches]).tolist():
        numbers = np.flatnonzero(first.stream == name)
        ends = np.array([step.gpu_end[numbers] for step in steps])
        lanes[name] = _Lane(numbers, np.maximum.accumulate(ends, axis=1))
    after: list[tuple[int, ...]] = [()] * len(first)
    if any(first.waits):
        after = _recorded_waits(first, lanes)
    for number in () if any(first.waits) else _waiting(first):
        when = np.array([step.gpu_start[number] for step in steps])
        mine = int(first.stream[number])
        found = (lane.last_ended(when, number) for s, lane in lanes.items() if s != mine)
        after[number] = tuple(sorted(each for each in found if each >= 0))
    waits = tuple(_host_waits(steps, lanes, number) for number in range(len(first)))
    return Order(tuple(after), waits)


def _recorded_waits(first: Calls, lanes: dict[int, _Lane]) -> list[tuple[int, ...]]:
    """Return what each launch comes after where the profiler recorded which stream waited."""
    after: list[tuple[int, ...]] = [()] * len(first)
    pending: dict[int, set[int]] = defaultdict(set)  # by stream, what its next launch waits for
    for number, wait in enumerate(first.waits):
        if wait is not None and wait.other in lanes:
            given = lanes[wait.other].numbers
            # The event stands behind what had been launched to its stream when it was recorded.
            before = given[first.start[given] < wait.recorded]
            pending[wait.stream] |= {int(before[-1])} if len(before) else set()
        elif first.row[number] >= 0:
            after[number] = tuple(sorted(pending.pop(int(first.stream[number]), ())))
    return after


@dataclass(frozen=True, slots=True)
class _Lane:
    """One stream: the numbers of its calls, and when what they launched ended in each step."""

    numbers: Ints
    ends: Floats  # by step and place, never falling

    def last_ended(self, when: Floats, before: int) -> int:
        """Return the last one called before a number that had ended by then in all steps, or -1."""
        ended = (
            np.searchsorted(row, then + _SLACK, side="right")
            for row, then in zip(self.ends, when, strict=True)
        )
        # In all steps: what had ended by then in one step by chance is not what was waited for.
        place = min(int(np.searchsorted(self.numbers, before)), *map(int, ended)) - 1
        return int(self.numbers[place]) if place >= 0 else -1

    def last(self, before: int) -> int:
        place = int(np.searchsorted(self.numbers, before)) - 1
        return int(self.numbers[place]) if place >= 0 else -1


def _waiting(calls: Calls) -> Iterator[int]:
    """Return the launches that may wait for another stream.

    Those are the first of each stream behind a call that makes a stream wait; where the profiler
    saw no such call, and inside a graph, all that follow work on another stream.
    """
    seen = any(map(is_stream_wait, calls.call))
    fresh: set[int] = set(np.unique(calls.stream[calls.launches]).tolist())
    everyone, last = frozenset(fresh), None
    for number, stream in enumerate(calls.stream.tolist()):
        if is_stream_wait(calls.call[number]):
            fresh |= everyone
        elif calls.row[number] >= 0:
            unseen = not seen or is_graph_launch(calls.call[number])
            if stream in fresh or (unseen and stream != last):
                yield number
            fresh.discard(stream)
            last = stream


def _host_waits(steps: Sequence[Calls], lanes: dict[int, _Lane], number: int) -> tuple[int, ...]:
    call = steps[0].call[number]
    if steps[0].row[number] >= 0:
        return (number,) if _is_blocking(steps, number) else ()
    if not is_host_wait(call):
        return ()
    # It waits for all streams; other calls wait for one event or stream, which has to be found.
    if "DeviceSynchronize" in call:
        return tuple(sorted(last for lane in lanes.values() if (last := lane.last(number)) >= 0))
    if max(step.end[number] - step.start[number] for step in steps) < _SHORT:
        return ()
    # What a wait of the host was for: what ended last before it returned.
    when = np.array([step.end[number] for step in steps])
    found = [each for lane in lanes.values() if (each := lane.last_ended(when, number)) >= 0]
    if not found:
        return ()
    # The host returns soon after what it waited for: the smallest delay, over all steps.
    late = [np.median([step.end[number] - step.gpu_end[each] for step in steps]) for each in found]
    return (found[int(np.argmin(late))],)


def _is_blocking(steps: Sequence[Calls], number: int) -> bool:
    """Return whether a copy returns when it is done: not from or to pinned memory, and seen so."""
    first = steps[0]
    if first.kind[number] != EventKind.COPY or "(Pinned" in first.name[number]:
        return False
    # cudaMemcpyAsync from pageable memory returns once the data is staged, to pageable memory when
    # it has arrived (CUDA's API synchronization behavior).
    if not ("DtoH" in first.name[number] or "ToHost" in first.name[number]):
        return "Async" not in first.call[number] and _returned_late(steps, number)
    return _returned_late(steps, number)


def _returned_late(steps: Sequence[Calls], number: int) -> bool:
    return all(step.gpu_end[number] <= step.end[number] + _SLACK for step in steps)
