"""Vector clocks: how far one thread must have come, as known at each point of the others."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import Any

import numpy as np

from weft.schedule.happens_before import HappensBefore
from weft.schedule.rank_symmetry import ROTATE, Symmetry


def element_of(symmetry: Symmetry, rank: Any) -> Any:
    """Return the index of a rank in its symmetry class: its collapsed coordinates as one number."""
    number, size = np.zeros_like(rank), 1
    for dim, stride, action in zip(symmetry.dims, symmetry.strides, symmetry.actions, strict=True):
        if action:
            number = number + rank // stride % dim * size
            size *= dim
    return number


def moved(symmetry: Symmetry, element: Any, by: Any, sign: int = 1) -> Any:
    """Return ``element`` moved by another element (``sign=-1``: moved back)."""
    result, size = np.zeros_like(element), 1
    for dim, action in zip(symmetry.dims, symmetry.actions, strict=True):
        if action:
            at, step = element // size % dim, by // size % dim
            result = result + ((at + sign * step) % dim if action == ROTATE else at ^ step) * size
            size *= dim
    return result


class CertainSenders:
    """Finds the signals that a wait is certain to have received."""

    def __init__(self, order: HappensBefore) -> None:
        self.order = order
        signals = np.flatnonzero(~order.holds)
        by_counter = signals[np.argsort(order.counter[signals], kind="stable")]
        self.events = by_counter
        self.bounds = np.searchsorted(order.counter[by_counter], np.arange(len(order.total) + 1))
        self.known: dict[int, list[tuple[list[int], list[int]]]] = {}

    def _of(self, counter: int) -> list[tuple[list[int], list[int]]]:
        """Return per sender its signals in order, and the running sum of what they add."""
        if counter not in self.known:
            order = self.order
            events = self.events[self.bounds[counter] : self.bounds[counter + 1]]
            groups: dict[tuple[int, int], list[int]] = defaultdict(list)
            keys = zip(order.thread[events].tolist(), order.sender[events].tolist(), strict=True)
            for event, key in zip(events.tolist(), keys, strict=True):
                groups[key].append(event)
            self.known[counter] = [
                (mine, np.cumsum(order.amount[mine]).tolist()) for mine in groups.values()
            ]
        return self.known[counter]

    def certain(self, counter: int, threshold: int) -> list[int]:
        """Return the last signal of each sender that has arrived once ``threshold`` is reached.

        In the worst case all other signals arrive first. If those add up to less than the
        threshold, the sender has passed this signal.
        """
        if self.order.unsafe[counter]:
            return []
        total = int(self.order.total[counter])
        events = []
        for mine, added in self._of(counter):
            needed = threshold - (total - added[-1])
            if needed >= 1:
                events.append(mine[bisect_left(added, needed)])
        return events


class VectorClock:
    """What every point of the schedule knows about one source thread, or about one rank's entry.

    ``at(thread, place)[element]`` is the last place of the source (of element zero) that must have
    happened before; -1 if none. An entry counts as place zero.
    """

    def __init__(
        self, order: HappensBefore, senders: CertainSenders, *, source: int = -1, entry_of: int = -1
    ) -> None:
        self.order = order
        self.senders = senders
        self.source = source
        table = order.table
        self.nothing = np.full(order.symmetry.represents, -1, np.int64)
        entered = self.nothing.copy()
        entered[0] = 0
        mine = (table.thread_rank == entry_of) & (table.thread_lane < 0)
        self.initial = {int(t): entered for t in np.flatnonzero(mine)}
        self.now = dict(self.initial)
        self.places: dict[int, list[int]] = defaultdict(list)
        self.values: dict[int, list[Any]] = defaultdict(list)
        self.carried: dict[int, Any] = {}
        self.told: dict[tuple[int, int], Any] = {}
        self.turned: dict[int, Any] = {}
        for event in np.lexsort((order.place, order.thread, order.when)).tolist():
            self._happens(event)

    def at(self, thread: int, place: int) -> Any:
        """Return what a thread knows when it reaches ``place``."""
        number = bisect_right(self.places[thread], place) - 1
        if number >= 0:
            return self.values[thread][number]
        return self.initial.get(thread, self.nothing)

    def _happens(self, event: int) -> None:
        order = self.order
        thread = int(order.thread[event])
        value = self.now.get(thread, self.nothing)
        if order.holds[event]:
            value = np.maximum(value, self._notified(event))
            self.now[thread] = value
            self.places[thread].append(int(order.place[event]))
            self.values[thread].append(value)
            return
        if thread == self.source:
            value = value.copy()
            value[0] = max(int(value[0]), int(order.place[event]))
        self.carried[event] = value

    def _notified(self, event: int) -> Any:
        """Return what a wait learns from the signals it is certain to have received."""
        key = (int(self.order.counter[event]), int(self.order.amount[event]))
        if key not in self.told:
            value = self.nothing
            for signal in self.senders.certain(*key):
                value = np.maximum(value, self._received(signal))
            self.told[key] = value
        return self.told[key]

    def _received(self, signal: int) -> Any:
        """Return what a signal carries, by the element of its receiver."""
        order = self.order
        value = self.carried[signal]
        if len(value) == 1 or order.counter[signal] >= order.first_private:
            return value
        sender = int(element_of(order.symmetry, int(order.sender[signal])))
        if sender not in self.turned:
            elements = np.arange(len(value))
            self.turned[sender] = moved(order.symmetry, elements, sender)
        return value[self.turned[sender]]
