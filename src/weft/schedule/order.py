"""What comes before what in a schedule, whatever the speed of its ranks.

Threads (queues and lanes) are ordered by their text and joined by flags, launches and
submissions. The ranks may be representatives of classes (see symmetry): a place is then
a thread of a representative and an element, which says of which member of the class.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import DeadlockError, FlagError
from weft.schedule.ir import Kind
from weft.schedule.symmetry import ROTATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.schedule.symmetry import Symmetry
    from weft.schedule.table import Table

    Key = tuple[int, int]  # a flag: representative rank, index


@dataclass(slots=True)
class Sent:
    """One signal as its receiver sees it: from which thread of which element, at which row."""

    thread: int
    element: int
    row: int


@dataclass(slots=True)
class Order:
    """A schedule's threads, who signals whom, and one order in which it all can happen."""

    table: Table
    symmetry: Symmetry
    flags: list[Key] = field(default_factory=list)  # by row
    rows: list[list[int]] = field(default_factory=list)  # by thread, what matters for order
    lanes: dict[int, list[int]] = field(default_factory=dict)  # by launch row
    sent: dict[Key, list[Sent]] = field(default_factory=dict)
    senders: dict[Key, list[list[Sent]]] = field(default_factory=dict)  # the same, by sender
    doors: dict[int, list[int]] = field(default_factory=dict)  # submissions, by thread they feed
    steps: list[tuple[int, int]] = field(default_factory=list)  # (thread, row) as they happened
    when: dict[int, int] = field(default_factory=dict)  # the place of a row in steps

    def flag(self, row: int) -> Key:
        return self.flags[row]

    def element(self, rank: Any) -> Any:  # noqa: ANN401 - numbers or arrays
        """Which member of its class a rank is, as a number."""
        return element_of(self.symmetry, rank)

    def guaranteed(self, key: Key, count: int) -> Iterator[Sent]:
        """The last signal of each sender that must have come when ``count`` have.

        All signals but those from some point of one sender on may come first; if they are
        fewer than ``count``, that point has been passed.
        """
        if key not in self.senders:
            by_sender: dict[tuple[int, int], list[Sent]] = defaultdict(list)
            for one in self.sent.get(key, ()):
                by_sender[one.thread, one.element].append(one)
            self.senders[key] = list(by_sender.values())
        total = len(self.sent.get(key, ()))
        for signals in self.senders[key]:
            sure = min(len(signals), count - total + len(signals))
            if sure >= 1:
                yield signals[sure - 1]


def element_of(symmetry: Symmetry, rank: Any) -> Any:  # noqa: ANN401 - numbers or arrays
    """Which member of its class a rank is: its collapsed coordinates as one number."""
    number, size = np.zeros_like(rank), 1
    for dim, stride, action in zip(
        symmetry.dims, symmetry.strides, symmetry.actions, strict=True
    ):
        if action:
            number = number + rank // stride % dim * size
            size *= dim
    return number


def find_order(table: Table, symmetry: Symmetry) -> Order:
    """Lets everything happen once; raises where something never can."""
    order = Order(table, symmetry)
    _collect(order)
    _check_counts(order)
    _let_happen(order)
    return order


def _collect(order: Order) -> None:
    table = order.table
    flag_owner = order.symmetry.representative(table.flag_rank.astype(np.int64))
    order.flags.extend(zip(flag_owner.tolist(), table.flag_index.tolist(), strict=True))
    order.rows.extend([] for _ in range(len(table.thread_rank)))
    for thread in np.flatnonzero(table.thread_launch >= 0).tolist():
        order.lanes.setdefault(int(table.thread_launch[thread]), []).append(thread)
    queue_thread = {
        (int(table.thread_rank[t]), int(table.thread_queue[t])): t
        for t in np.flatnonzero(table.thread_lane < 0).tolist()
    }
    ordering = (Kind.SIGNAL, Kind.WAIT, Kind.LAUNCH, Kind.SUBMIT)
    fed_threads = {
        queue_thread.get((int(table.target_rank[r]), int(table.target_queue[r])), -1)
        for r in np.flatnonzero(table.kind == Kind.SUBMIT).tolist()
    }
    matters = np.isin(table.kind, ordering) | np.isin(table.thread, list(fed_threads))
    threads = table.thread.tolist()
    for row in np.flatnonzero(matters).tolist():
        order.rows[threads[row]].append(row)
    signals = np.flatnonzero(table.kind == Kind.SIGNAL)
    owners = table.flag_rank[signals].astype(np.int64)
    runners = table.thread_rank[table.thread[signals]].astype(np.int64)
    senders = order.element(order.symmetry.seen_by(runners, owners)).tolist()
    for row, element in zip(signals.tolist(), senders, strict=True):
        order.sent.setdefault(order.flags[row], []).append(Sent(threads[row], element, row))
    for row in np.flatnonzero(table.kind == Kind.SUBMIT).tolist():
        target = (int(table.target_rank[row]), int(table.target_queue[row]))
        if target not in queue_thread:
            raise FlagError(
                f"{table.where(row)} feeds {table.queues[target[1]]}@{target[0]}, which has no "
                "commands."
            )
        order.doors.setdefault(queue_thread[target], []).append(row)


def _check_counts(order: Order) -> None:
    """Every Wait has as many Signals as it holds for, every Submit as many commands."""
    table = order.table
    for row in np.flatnonzero(table.kind == Kind.WAIT).tolist():
        have, need = len(order.sent.get(order.flag(row), ())), int(table.count[row])
        if have < need:
            raise FlagError(
                f"{table.where(row)} holds for {need} signals of flag {table.flag_index[row]}@"
                f"{table.flag_rank[row]}, which gets {have}.",
                "Add the missing Signals or lower the count.",
            )
    for thread, submits in order.doors.items():
        rows = np.flatnonzero((table.thread == thread) & (table.fed >= 0))
        handed = int(table.count[submits].sum())
        if handed != len(rows):
            raise FlagError(
                f"{handed} commands are submitted to {_queue_name(table, thread)}, which has "
                f"{len(rows)}.",
                "The counts of all Submits to a queue add up to its commands.",
            )


def _queue_name(table: Table, thread: int) -> str:
    return f"{table.queues[table.thread_queue[thread]]}@{table.thread_rank[thread]}"


class _Happening:
    """The state while everything happens once: where threads stand, what was raised."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.at = [0] * len(order.rows)
        self.raised: dict[Key, int] = defaultdict(int)
        self.handed: dict[int, int] = defaultdict(int)
        self.waiting: dict[Any, list[int]] = defaultdict(list)
        self.lanes_left: dict[int, int] = {}
        table = order.table
        launched = table.thread_launch.tolist()
        self.runnable = deque(t for t in range(len(order.rows)) if launched[t] < 0)
        self.launch_of = launched
        self.kind = table.kind.tolist()
        self.thread_of = table.thread.tolist()
        self.count = table.count.tolist()
        self.fed = table.fed.tolist()

    def run(self) -> None:
        while self.runnable:
            self.advance(self.runnable.popleft())

    def advance(self, thread: int) -> None:
        order, rows = self.order, self.order.rows[thread]
        while self.at[thread] < len(rows):
            row = rows[self.at[thread]]
            if not self.may_start(thread, row):
                return
            kind = self.kind[row]
            if kind == Kind.LAUNCH and row not in self.lanes_left:
                lanes = order.lanes.get(row, [])
                self.note(thread, row)
                self.lanes_left[row] = len(lanes)
                if lanes:
                    self.runnable.extend(lanes)
                    return
            elif kind != Kind.LAUNCH:
                self.note(thread, row)
                self.act(kind, row)
            self.at[thread] += 1
        self.end(thread)

    def note(self, thread: int, row: int) -> None:
        self.order.when[row] = len(self.order.steps)
        self.order.steps.append((thread, row))

    def may_start(self, thread: int, row: int) -> bool:
        order = self.order
        fed = self.fed[row]
        if thread in order.doors and fed >= 0:
            if self.handed[thread] <= fed:
                self.waiting["door", thread].append(thread)
                return False
            hold = self.hold_of(thread, fed)
            if hold is not None and self.raised[hold] < 1:
                self.waiting[hold].append(thread)
                return False
        if self.kind[row] == Kind.WAIT:
            key = order.flag(row)
            if self.raised[key] < self.count[row]:
                self.waiting[key].append(thread)
                return False
        return True

    def hold_of(self, thread: int, fed: int) -> Key | None:
        before = 0
        for submit in self.order.doors[thread]:
            before += self.count[submit]
            if fed < before:
                held = self.order.table.flag_rank[submit] >= 0
                return self.order.flag(submit) if held else None
        raise AssertionError

    def act(self, kind: int, row: int) -> None:
        if kind == Kind.SIGNAL:
            key = self.order.flag(row)
            self.raised[key] += 1
            self.runnable.extend(self.waiting.pop(key, ()))
        elif kind == Kind.SUBMIT:
            thread = next(t for t, rows in self.order.doors.items() if row in rows)
            self.handed[thread] += self.count[row]
            self.runnable.extend(self.waiting.pop(("door", thread), ()))

    def end(self, thread: int) -> None:
        launch = self.launch_of[thread]
        if launch >= 0 and self.at[thread] == len(self.order.rows[thread]):
            self.at[thread] += 1  # ended, once
            self.lanes_left[launch] -= 1
            if self.lanes_left[launch] == 0:
                self.runnable.append(self.thread_of[launch])


def _let_happen(order: Order) -> None:
    happening = _Happening(order)
    happening.run()
    table = order.table
    stuck = [
        order.rows[t][happening.at[t]]
        for t in range(len(order.rows))
        if happening.at[t] < len(order.rows[t]) and order.rows[t][happening.at[t]] not in order.when
    ]
    stuck = [row for row in stuck if _started(order, happening, row)]
    if stuck:
        told = "; ".join(_stuck_at(order, happening, row) for row in stuck[:4])
        more = f" and {len(stuck) - 4} more" if len(stuck) > 4 else ""  # noqa: PLR2004
        raise DeadlockError(
            f"{len(stuck)} commands can never start: {told}{more}.",
            "Every Wait needs that many Signals of its flag that do not themselves wait on it.",
        )
    del table


def _started(order: Order, happening: _Happening, row: int) -> bool:
    """Whether the thread of a row runs at all: not a lane of a launch that never came."""
    launch = happening.launch_of[happening.thread_of[row]]
    return launch < 0 or launch in order.when


def _stuck_at(order: Order, happening: _Happening, row: int) -> str:
    where = order.table.where(row)
    if order.table.kind[row] != Kind.WAIT:
        return f"{where} (never handed over)"
    have, need = happening.raised[order.flag(row)], int(order.table.count[row])
    return f"{where} (flag {order.table.flag_index[row]}, {have} of {need} signals)"


class Knowledge:
    """How far each place knows that one source thread has come, as everything happens.

    ``at(row, element)`` is the last row of the source (of element zero) that must have
    happened before ``row`` of that element; -1 if none.
    """

    def __init__(self, order: Order, source: int | None, entry_of: int | None = None) -> None:
        self.order = order
        self.num = order.symmetry.represents
        self.source = source
        nothing = np.full(self.num, -1, np.int64)
        self.now: dict[int, Any] = {}
        self.history: dict[int, tuple[list[int], list[Any]]] = {}
        self.signalled: dict[int, Any] = {}
        self.complete: dict[tuple[Key, int], Any] = {}
        self.perm: dict[int, Any] = {}
        self.nothing = nothing
        table = order.table
        self.entry = [] if entry_of is None else [
            t for t in range(len(order.rows))
            if table.thread_rank[t] == entry_of and table.thread_lane[t] < 0
        ]
        for thread, row in order.steps:
            self._step(thread, row)

    def at(self, row: int, element: int) -> int:
        return int(self.known(int(self.order.table.thread[row]), row)[element])

    def known(self, thread: int, row: int) -> Any:  # noqa: ANN401 - by element
        """What a thread knows when it comes to ``row``."""
        self._open(thread)
        for launch in self.order.rows[thread]:
            if launch < row and launch in self.order.lanes:
                self.joined(thread, launch)
        rows, values = self.history[thread]
        return values[bisect_right(rows, row) - 1]

    def _open(self, thread: int) -> None:
        """A thread begins with what its launch knew, or with nothing."""
        if thread in self.now:
            return
        value = self.nothing
        launch = int(self.order.table.thread_launch[thread])
        if launch >= 0:
            parent = int(self.order.table.thread[launch])
            value = self._sends(parent, launch)
        if thread in self.entry:
            value = value.copy()
            value[0] = 0
        self.now[thread] = value
        self.history[thread] = ([-1], [value])

    def _sends(self, thread: int, row: int) -> Any:  # noqa: ANN401 - what a signal carries
        self._open(thread)
        if thread != self.source:
            return self.now[thread]
        value = self.now[thread].copy()
        value[0] = max(value[0], row)
        return value

    def _learn(self, thread: int, row: int, value: Any) -> None:  # noqa: ANN401
        self._open(thread)
        self.now[thread] = np.maximum(self.now[thread], value)
        rows, values = self.history[thread]
        rows.append(row)
        values.append(self.now[thread])

    def _step(self, thread: int, row: int) -> None:
        order = self.order
        kind = order.table.kind[row]
        self._open(thread)
        self._join_launches(thread, row)
        if thread in order.doors and order.table.fed[row] >= 0:
            self._handed_over(thread, row)
        if kind in (Kind.SIGNAL, Kind.SUBMIT):
            self.signalled[row] = self._sends(thread, row)
        elif kind == Kind.WAIT:
            self._learn(thread, row, self._told(order.flag(row), int(order.table.count[row])))

    def _join_launches(self, thread: int, row: int) -> None:
        """After a launch its queue knows what its lanes knew at their ends."""
        rows = self.order.rows[thread]
        place = bisect_right(rows, row) - 2
        if place >= 0 and rows[place] in self.order.lanes:
            self.joined(thread, rows[place])

    def joined(self, thread: int, launch: int) -> None:
        key = (("join", launch), 0)
        if key in self.complete:  # type: ignore[comparison-overlap]
            return
        lanes = self.order.lanes[launch]
        value = np.maximum.reduce([self._sends(t, self._last_row(t)) for t in lanes])
        self.complete[key] = value  # type: ignore[index]
        self._learn(thread, self._last_row(lanes[-1]), value)

    def _last_row(self, thread: int) -> int:
        return int(self.order.table.thread_stop[thread]) - 1

    def _handed_over(self, thread: int, row: int) -> None:
        table, before = self.order.table, 0
        for submit in self.order.doors[thread]:
            if before == table.fed[row]:
                self._learn(thread, row, self.signalled[submit])
                if table.flag_rank[submit] >= 0:
                    self._learn(thread, row, self._told(self.order.flag(submit), 1))
            before += int(table.count[submit])

    def _told(self, key: Key, count: int) -> Any:  # noqa: ANN401
        cached = self.complete.get((key, count))
        if cached is None:
            value = self.nothing
            for one in self.order.guaranteed(key, count):
                value = np.maximum(value, self._received(one))
            cached = self.complete[key, count] = value
        return cached

    def _received(self, one: Sent) -> Any:  # noqa: ANN401
        """What a signal carries, by the element of its receiver."""
        if self.num == 1:
            return self.signalled[one.row]
        if one.element not in self.perm:
            self.perm[one.element] = _senders(self.order.symmetry, one.element)
        return self.signalled[one.row][self.perm[one.element]]


def _senders(symmetry: Symmetry, element: int) -> Any:  # noqa: ANN401
    """For each receiving element, the one that sends; element zero receives from ``element``."""
    elements = np.arange(symmetry.represents)
    result, size = np.zeros_like(elements), 1
    for dim, action in zip(symmetry.dims, symmetry.actions, strict=True):
        if action:
            at, step = elements // size % dim, element // size % dim
            result += ((at + step) % dim if action == ROTATE else at ^ step) * size
            size *= dim
    return result
