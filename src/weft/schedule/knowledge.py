"""How far one thread has come, as every other thread must know at each of its places."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.schedule.symmetry import ROTATE

if TYPE_CHECKING:
    from weft.schedule.order import Order
    from weft.schedule.symmetry import Symmetry


def element_of(symmetry: Symmetry, rank: Any) -> Any:
    """Which member of its class a rank is: its collapsed coordinates as one number."""
    number, size = np.zeros_like(rank), 1
    for dim, stride, action in zip(symmetry.dims, symmetry.strides, symmetry.actions, strict=True):
        if action:
            number = number + rank // stride % dim * size
            size *= dim
    return number


def moved(symmetry: Symmetry, element: Any, by: Any, sign: int = 1) -> Any:
    """``element`` moved by another one, or back by it."""
    result, size = np.zeros_like(element), 1
    for dim, action in zip(symmetry.dims, symmetry.actions, strict=True):
        if action:
            at, step = element // size % dim, by // size % dim
            result = result + ((at + sign * step) % dim if action == ROTATE else at ^ step) * size
            size *= dim
    return result


class Senders:
    """Which signals a wait can be sure of."""

    def __init__(self, order: Order) -> None:
        self.order = order
        signals = np.flatnonzero(~order.holds)
        by_counter = signals[np.argsort(order.counter[signals], kind="stable")]
        self.events = by_counter
        self.bounds = np.searchsorted(order.counter[by_counter], np.arange(len(order.total) + 1))
        self.known: dict[int, list[tuple[list[int], list[int]]]] = {}

    def _of(self, counter: int) -> list[tuple[list[int], list[int]]]:
        """By sender: its signals in order, and what has been added after each."""
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

    def sure(self, counter: int, threshold: int) -> list[int]:
        """The last signal of each sender that must have come when ``threshold`` has.

        All signals but those from some point of one sender on may come first; if they add up
        to less than the threshold, that point has been passed.
        """
        if self.order.loose[counter]:
            return []
        total = int(self.order.total[counter])
        events = []
        for mine, added in self._of(counter):
            needed = threshold - (total - added[-1])
            if needed >= 1:
                events.append(mine[bisect_left(added, needed)])
        return events


class Knowledge:
    """What every place knows of one source thread, or of one rank's entry.

    ``at(thread, place, element)`` is the last place of the source (of element zero) that must
    have happened before; -1 if none. An entry counts as place zero.
    """

    def __init__(
        self, order: Order, senders: Senders, *, source: int = -1, entry_of: int = -1
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
        """What a thread knows when it comes to ``place``."""
        number = bisect_right(self.places[thread], place) - 1
        if number >= 0:
            return self.values[thread][number]
        return self.initial.get(thread, self.nothing)

    def _happens(self, event: int) -> None:
        order = self.order
        thread = int(order.thread[event])
        value = self.now.get(thread, self.nothing)
        if order.holds[event]:
            value = np.maximum(value, self._told(event))
            self.now[thread] = value
            self.places[thread].append(int(order.place[event]))
            self.values[thread].append(value)
            return
        if thread == self.source:
            value = value.copy()
            value[0] = max(int(value[0]), int(order.place[event]))
        self.carried[event] = value

    def _told(self, event: int) -> Any:
        """What a wait learns from the signals it can be sure of."""
        key = (int(self.order.counter[event]), int(self.order.amount[event]))
        if key not in self.told:
            value = self.nothing
            for signal in self.senders.sure(*key):
                value = np.maximum(value, self._received(signal))
            self.told[key] = value
        return self.told[key]

    def _received(self, signal: int) -> Any:
        """What a signal carries, by the element of its receiver."""
        order = self.order
        value = self.carried[signal]
        if len(value) == 1 or order.counter[signal] >= order.first_private:
            return value
        sender = int(element_of(order.symmetry, int(order.sender[signal])))
        if sender not in self.turned:
            elements = np.arange(len(value))
            self.turned[sender] = moved(order.symmetry, elements, sender)
        return value[self.turned[sender]]
