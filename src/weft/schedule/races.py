"""No two commands touch the same bytes in no order, and nobody touches a rank that is away."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import RaceError
from weft.schedule.accesses import WRITE
from weft.schedule.knowledge import Knowledge, Senders, element_of, moved
from weft.schedule.order import PLACES, SELF_PLACE, Order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.schedule.symmetry import Symmetry
    from weft.schedule.table import Table

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

FEW = 3  # waits at the start of a thread that are looked at before the whole history is


@dataclass(frozen=True, slots=True)
class Acts:
    """What commands do to a rank: where they stand, and which rank it is."""

    row: Ints
    thread: Ints
    place: Ints
    owner: Ints  # of the bytes or of the flag


@dataclass(frozen=True, slots=True)
class Touches(Acts):
    """Accesses, each as its runner sees it and as the owner's representative sees it."""

    owner_class: Ints  # the owner's representative
    toucher: Ints  # who touches the representative in this way
    buffer: Ints
    start: Ints
    stop: Ints
    write: Bools

    def chosen(self, which: Any) -> Touches:
        """Some of them."""
        return Touches(*(getattr(self, each.name)[which] for each in fields(Touches)))


def touches_of(table: Table, symmetry: Symmetry) -> Touches:
    """Every access of at least one byte."""
    some = np.flatnonzero(table.access_nbytes > 0)
    row = np.searchsorted(table.access_start, some, side="right") - 1
    owner = table.access_rank[some].astype(np.int64)
    thread = table.thread[row].astype(np.int64)
    runner = table.thread_rank[thread].astype(np.int64)
    start = table.access_offset[some]
    return Touches(
        row,
        thread,
        row * PLACES + SELF_PLACE,
        owner,
        symmetry.representative(owner),
        symmetry.seen_by(runner, owner),
        table.access_buffer[some].astype(np.int64),
        start,
        start + table.access_nbytes[some],
        (table.access_mode[some] & WRITE) > 0,
    )


def check_entry_and_exit(order: Order, touches: Touches) -> None:
    """Others touch a rank's buffers only between its entry and its exit."""
    runner = order.table.thread_rank[touches.thread]
    away = touches.chosen(runner != touches.owner)
    signals = SureSignals(order)
    early = away.chosen(~signals.heard_from_owner(away))
    late = away.chosen(~signals.answered_to_owner(away))
    if not len(early.row) and not len(late.row):
        return
    senders = Senders(order)
    for owner in np.unique(early.owner_class).tolist():
        known = Knowledge(order, senders, entry_of=owner)
        _check_entered(order, known, early.chosen(early.owner_class == owner))
    for thread in np.unique(late.thread).tolist():
        known = Knowledge(order, senders, source=thread)
        _check_left(order, known, late.chosen(late.thread == thread))


def _check_entered(order: Order, known: Knowledge, early: Touches) -> None:
    elements = element_of(order.symmetry, early.toucher).tolist()
    for number, element in enumerate(elements):
        place = int(early.place[number])
        if known.at(int(early.thread[number]), place)[element] < 0:
            raise RaceError(
                f"{order.table.where(int(early.row[number]))} may touch the buffers of rank "
                f"{early.owner[number]} before that rank has entered.",
                "Let the owner signal that it is ready, and wait for that." + doubt(order),
            )


def _check_left(order: Order, known: Knowledge, late: Touches) -> None:
    table = order.table
    elements = element_of(order.symmetry, late.owner).tolist()
    end = table.num_rows * PLACES
    for number, element in enumerate(elements):
        mine = (table.thread_rank == late.owner_class[number]) & (table.thread_lane < 0)
        learnt = [known.at(int(t), end)[element] for t in np.flatnonzero(mine)]
        if max(learnt, default=-1) < late.place[number]:
            raise RaceError(
                f"{table.where(int(late.row[number]))} may still touch the buffers of rank "
                f"{late.owner[number]} after that rank has left.",
                "Signal the owner afterwards, and let it wait for that." + doubt(order),
            )


def doubt(order: Order) -> str:
    """Say of which flag no wait is sure, where there is one."""
    if not order.loose.any():
        return ""
    rank, index = divmod(int(np.argmax(order.loose)), order.table.schedule.num_flags)
    return (
        f" No wait is sure of flag {index}@{rank}: several raise it, of which one may be an "
        "execution ahead. Give each a flag of its own, or hold it back until the wait is over."
    )


class SureSignals:
    """Signals that some wait is sure of, looked up in bulk: enough for most accesses.

    A wait is sure of all signals of its flag if it holds for all of them, and of the first
    ones if they have one sender.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.num_ranks = order.table.schedule.num_ranks
        flags = order.counter < order.first_private
        self.signals = np.flatnonzero(flags & ~order.holds)
        sure = flags & order.holds & (order.amount > 0) & ~order.loose[order.counter]
        waits = np.flatnonzero(sure)  # for no signal: sure of none
        self.single = self._single_sender()
        complete = order.amount[waits] == order.total[order.counter[waits]]
        self.waits = waits[complete | self.single[order.counter[waits]]]

    def _single_sender(self) -> Bools:
        order, signals = self.order, self.signals
        sender = order.thread[signals].astype(np.int64) * self.num_ranks + order.sender[signals]
        counter = order.counter[signals]
        low = np.full(len(order.total), np.iinfo(np.int64).max)
        high = np.full(len(order.total), -1)
        np.minimum.at(low, counter, sender)
        np.maximum.at(high, counter, sender)
        alone: Bools = low == high
        return alone

    def heard_from_owner(self, acts: Acts) -> Bools:
        """Whether the owner was heard from by one of the first waits in front of an act."""
        order = self.order
        pairs = np.sort(order.counter[self.signals] * self.num_ranks + order.sender[self.signals])
        launch = order.table.thread_launch[acts.thread].astype(np.int64)
        parent = np.where(launch < 0, acts.thread, order.table.thread[launch])
        heard = np.zeros(len(acts.row), bool)
        for thread, place in ((acts.thread, acts.place), (parent, launch * PLACES)):
            heard |= self._heard(pairs, thread, place, acts.owner)
        return heard

    def _heard(self, pairs: Ints, thread: Ints, place: Ints, owner: Ints) -> Bools:
        order = self.order
        heard = np.zeros(len(owner), bool)
        if not len(self.waits) or not len(pairs):
            return heard
        first = np.searchsorted(order.thread[self.waits], thread)
        for number in range(FEW):
            at = np.minimum(first + number, len(self.waits) - 1)
            wait = self.waits[at]
            usable = (order.thread[wait] == thread) & (order.place[wait] < place)
            key = order.counter[wait] * self.num_ranks + owner
            found = np.minimum(np.searchsorted(pairs, key), len(pairs) - 1)
            heard |= usable & (pairs[found] == key)
        return heard

    def awaited(self) -> Ints:
        """The signals that a wait of their flag's owner is sure of."""
        order = self.order
        largest = np.zeros(len(order.total), np.int64)
        np.maximum.at(largest, order.counter[self.waits], order.amount[self.waits])
        counter = order.counter[self.signals]
        by_counter = np.argsort(counter, kind="stable")
        ordinal = np.empty(len(counter), np.int64)
        ranked = np.arange(len(counter))
        ordinal[by_counter] = ranked - np.searchsorted(counter[by_counter], counter[by_counter])
        whole = largest[counter] == order.total[counter]
        awaited: Ints = self.signals[whole | (ordinal < largest[counter])]
        return awaited

    def answered_to_owner(self, touches: Touches) -> Bools:
        """Whether the owner waits for a signal that the same thread sends after a touch."""
        order, sure = self.order, self.awaited()
        owner = order.table.flag_rank[order.row[sure]].astype(np.int64)
        keys = order.thread[sure].astype(np.int64) * self.num_ranks + owner
        by_key = np.argsort(keys, kind="stable")  # places rise inside a thread
        keys, last = keys[by_key], order.place[sure][by_key]
        launch = order.table.thread_launch[touches.thread].astype(np.int64)
        parent = np.where(launch < 0, touches.thread, order.table.thread[launch])
        answered = np.zeros(len(touches.row), bool)
        for thread, place in ((touches.thread, touches.place), (parent, launch * PLACES)):
            key = thread * self.num_ranks + touches.owner
            at = np.searchsorted(keys, key, side="right") - 1
            found = (at >= 0) & (launch >= 0 if place is not touches.place else True)
            if len(keys):
                answered |= found & (keys[at] == key) & (last[at] > place)
        return answered


def check_races(order: Order, touches: Touches) -> None:
    """Two accesses to the same bytes, one of them a write, have an order."""
    table, symmetry = order.table, order.symmetry
    asked: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    elements = element_of(symmetry, touches.toucher)
    for first, second in _conflicts(order, touches):
        element = int(moved(symmetry, int(elements[second]), int(elements[first]), -1))
        if element or touches.thread[first] != touches.thread[second]:
            asked[int(touches.thread[first])].append((first, second, element))
    if not asked:
        return
    senders = Senders(order)
    for thread, pairs in asked.items():
        known = Knowledge(order, senders, source=thread)
        for first, second, element in pairs:
            learnt = known.at(int(touches.thread[second]), int(touches.place[second]))[element]
            if learnt < touches.place[first]:
                rows = table.where(int(touches.row[first])), table.where(int(touches.row[second]))
                raise RaceError(
                    f"{rows[0]} and {rows[1]} touch the same bytes of "
                    f"{table.buffers[touches.buffer[first]]}@{touches.owner_class[first]} in no "
                    "order.",
                    "Join them by a flag: Signal after the one, Wait before the other."
                    + doubt(order),
                )


def _conflicts(order: Order, touches: Touches) -> Iterator[tuple[int, int]]:
    """Neighbouring accesses to the same bytes, in one order in which all can happen.

    If each is ordered before the next that conflicts with it, all are.
    """
    where = touches.owner_class * max(1, len(order.table.buffers)) + touches.buffer
    sequence = np.lexsort((touches.start, where))
    bounds = np.flatnonzero(np.diff(where[sequence])) + 1
    overlapping = _overlapping(where[sequence], touches.start[sequence], touches.stop[sequence])
    if not overlapping.any():
        return
    when = order.last_before(touches.thread, touches.place)
    starts = np.concatenate(([0], bounds))
    busy = np.logical_or.reduceat(overlapping, starts)
    for group, is_busy in zip(np.split(sequence, bounds), busy.tolist(), strict=True):
        if is_busy and touches.write[group].any():
            yield from _conflicts_in(group, touches, when)


def _overlapping(where: Ints, start: Ints, stop: Ints) -> Bools:
    """Accesses, sorted by place and start, that reach into the next one."""
    overlapping = np.zeros(len(where), bool)
    if len(where) > 1:
        neighbours = where[1:] == where[:-1]
        # Enough to find groups with any overlap: the first one is always between neighbours.
        overlapping[:-1] = neighbours & (stop[:-1] > start[1:])
    return overlapping


def _conflicts_in(group: Ints, touches: Touches, when: Ints) -> Iterator[tuple[int, int]]:
    cuts = np.unique(np.concatenate([touches.start[group], touches.stop[group]]))
    first = np.searchsorted(cuts, touches.start[group])
    last = np.searchsorted(cuts, touches.stop[group])
    pieces: dict[int, list[int]] = defaultdict(list)
    for access, low, high in zip(group.tolist(), first.tolist(), last.tolist(), strict=True):
        for piece in range(low, high):
            pieces[piece].append(access)
    seen: set[tuple[int, int]] = set()
    for accesses in pieces.values():
        accesses.sort(key=lambda a: (when[a], touches.row[a]))
        for pair in _neighbours(accesses, touches.write):
            if pair not in seen:
                seen.add(pair)
                yield pair


def _neighbours(accesses: list[int], write: Bools) -> Iterator[tuple[int, int]]:
    last_write: int | None = None
    reads: list[int] = []
    for access in accesses:
        if write[access]:
            for read in reads:
                yield read, access
            if last_write is not None and not reads:
                yield last_write, access
            last_write, reads = access, []
        else:
            if last_write is not None:
                yield last_write, access
            reads.append(access)
