"""Race checks: conflicting accesses are ordered and happen while the owner executes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from weft.errors import RaceError
from weft.schedule.accesses import WRITE
from weft.schedule.happens_before import PLACES, SELF_PLACE, HappensBefore
from weft.schedule.rank_symmetry import Symmetry
from weft.schedule.table import CommandTable
from weft.schedule.vector_clock import CertainSenders, VectorClock, element_of, moved

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

FEW = 3  # waits at the start of a thread to try before computing the whole vector clock


@dataclass(frozen=True, slots=True)
class RemoteActions:
    """What commands do to other ranks: their location, and the rank they act on."""

    row: Ints
    thread: Ints
    place: Ints
    owner: Ints  # of the bytes or of the flag


@dataclass(frozen=True, slots=True)
class MemoryAccesses(RemoteActions):
    """Memory accesses, as seen by their runner and by the owner's representative."""

    owner_class: Ints  # the owner's representative
    toucher: Ints  # the rank whose access to the representative corresponds to this one
    buffer: Ints
    start: Ints
    stop: Ints
    write: Bools

    def select(self, which: Any) -> MemoryAccesses:
        """Return a subset."""
        return MemoryAccesses(*(getattr(self, each.name)[which] for each in fields(MemoryAccesses)))


def memory_accesses(table: CommandTable, symmetry: Symmetry) -> MemoryAccesses:
    """Return every access of at least one byte."""
    some = np.flatnonzero(table.access_nbytes > 0)
    row = np.searchsorted(table.access_start, some, side="right") - 1
    owner = table.access_rank[some].astype(np.int64)
    thread = table.thread[row].astype(np.int64)
    runner = table.thread_rank[thread].astype(np.int64)
    start = table.access_offset[some]
    return MemoryAccesses(
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


def check_entry_and_exit(order: HappensBefore, touches: MemoryAccesses) -> None:
    """Check that others access a rank's buffers only between its entry and its exit."""
    runner = order.table.thread_rank[touches.thread]
    away = touches.select(runner != touches.owner)
    signals = CertainSignals(order)
    # Lookups of direct signals decide nearly all accesses; vector clocks, which are exact and
    # slower, decide the rest.
    early = away.select(~signals.heard_from_owner(away))
    late = away.select(~signals.answered_to_owner(away))
    if not len(early.row) and not len(late.row):
        return
    senders = CertainSenders(order)
    for owner in np.unique(early.owner_class).tolist():
        known = VectorClock(order, senders, entry_of=owner)
        _check_entered(order, known, early.select(early.owner_class == owner))
    for thread in np.unique(late.thread).tolist():
        known = VectorClock(order, senders, source=thread)
        _check_left(order, known, late.select(late.thread == thread))


def _check_entered(order: HappensBefore, known: VectorClock, early: MemoryAccesses) -> None:
    elements = element_of(order.symmetry, early.toucher).tolist()
    for number, element in enumerate(elements):
        place = int(early.place[number])
        if known.at(int(early.thread[number]), place)[element] < 0:
            raise RaceError(
                f"{order.table.where(int(early.row[number]))} may access the buffers of rank "
                f"{early.owner[number]} before that rank has entered.",
                "Make the owner signal that it is ready, and wait for that signal."
                + unsafe_flag_hint(order),
            )


def _check_left(order: HappensBefore, known: VectorClock, late: MemoryAccesses) -> None:
    table = order.table
    elements = element_of(order.symmetry, late.owner).tolist()
    end = table.num_rows * PLACES
    for number, element in enumerate(elements):
        mine = (table.thread_rank == late.owner_class[number]) & (table.thread_lane < 0)
        learnt = [known.at(int(t), end)[element] for t in np.flatnonzero(mine)]
        if max(learnt, default=-1) < late.place[number]:
            raise RaceError(
                f"{table.where(int(late.row[number]))} may still access the buffers of rank "
                f"{late.owner[number]} after that rank has left.",
                "Signal the owner afterwards, and make it wait for that signal."
                + unsafe_flag_hint(order),
            )


def unsafe_flag_hint(order: HappensBefore) -> str:
    """Return a hint that names an unsafe flag, if there is one."""
    if not order.unsafe.any():
        return ""
    rank, index = divmod(int(np.argmax(order.unsafe)), order.table.schedule.num_flags)
    return (
        f" No wait is sure of flag {index}@{rank}: several raise it, of which one may be an "
        "execution ahead. Give each a flag of its own, or hold it back until the wait is over."
    )


class CertainSignals:
    """Signals that a wait is certain of, looked up in bulk; this decides most accesses.

    A wait is certain of all signals of its flag if it waits for all of them, and of the first ones
    if they have one sender.
    """

    def __init__(self, order: HappensBefore) -> None:
        self.order = order
        self.num_ranks = order.table.schedule.num_ranks
        flags = order.counter < order.first_private
        self.signals = np.flatnonzero(flags & ~order.holds)
        certain = flags & order.holds & (order.amount > 0) & ~order.unsafe[order.counter]
        waits = np.flatnonzero(certain)  # for no signal: certain of none
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

    def heard_from_owner(self, acts: RemoteActions) -> Bools:
        """Return whether one of the first waits before an action proves the owner's entry."""
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
        """Return the signals that a wait of the flag's owner is certain of."""
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

    def answered_to_owner(self, touches: MemoryAccesses) -> Bools:
        """Return whether the owner waits for a signal that the thread sends after an access."""
        order, certain = self.order, self.awaited()
        owner = order.table.flag_rank[order.row[certain]].astype(np.int64)
        keys = order.thread[certain].astype(np.int64) * self.num_ranks + owner
        by_key = np.argsort(keys, kind="stable")  # places rise inside a thread
        keys, last = keys[by_key], order.place[certain][by_key]
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


def check_races(order: HappensBefore, touches: MemoryAccesses) -> None:
    """Check that two accesses to the same bytes, one of them a write, are ordered."""
    table, symmetry = order.table, order.symmetry
    asked: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    elements = element_of(symmetry, touches.toucher)
    for first, second in _conflicts(order, touches):
        # By symmetry the first access is taken to be by the representative; the second is then by
        # the rank at this distance from it.
        element = int(moved(symmetry, int(elements[second]), int(elements[first]), -1))
        # Accesses of one thread of one rank are ordered by the program.
        if element or touches.thread[first] != touches.thread[second]:
            asked[int(touches.thread[first])].append((first, second, element))
    if not asked:
        return
    senders = CertainSenders(order)
    for thread, pairs in asked.items():
        known = VectorClock(order, senders, source=thread)
        for first, second, element in pairs:
            learnt = known.at(int(touches.thread[second]), int(touches.place[second]))[element]
            if learnt < touches.place[first]:
                rows = table.where(int(touches.row[first])), table.where(int(touches.row[second]))
                raise RaceError(
                    f"{rows[0]} and {rows[1]} access the same bytes of "
                    f"{table.buffers[touches.buffer[first]]}@{touches.owner_class[first]} in no "
                    "order.",
                    "Order them by a flag: Signal after the one, Wait before the other."
                    + unsafe_flag_hint(order),
                )


def _conflicts(order: HappensBefore, touches: MemoryAccesses) -> Iterator[tuple[int, int]]:
    """Yield neighbouring accesses to the same bytes, in one valid order of execution.

    If each access is ordered before the next one that conflicts with it, all are.
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
    """Return which accesses, sorted by buffer and start, overlap the next one."""
    overlapping = np.zeros(len(where), bool)
    if len(where) > 1:
        neighbours = where[1:] == where[:-1]
        # Enough to find groups with any overlap: the first overlap is always between neighbours.
        overlapping[:-1] = neighbours & (stop[:-1] > start[1:])
    return overlapping


def _conflicts_in(group: Ints, touches: MemoryAccesses, when: Ints) -> Iterator[tuple[int, int]]:
    # Between two cuts all accesses cover the same bytes, so pieces can be looked at one by one.
    cuts = np.unique(np.concatenate([touches.start[group], touches.stop[group]]))
    first = np.searchsorted(cuts, touches.start[group])
    last = np.searchsorted(cuts, touches.stop[group])
    pieces: dict[int, list[int]] = defaultdict(list)
    for access, low, high in zip(group.tolist(), first.tolist(), last.tolist(), strict=True):
        for piece in range(low, high):
            pieces[piece].append(access)
    seen: set[tuple[int, int]] = set()
    for accesses in pieces.values():
        # Any valid order will do: if neighbours in it are not ordered by flags, that is a race.
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
            # With reads in between, write -> read -> write already orders the two writes.
            if last_write is not None and not reads:
                yield last_write, access
            last_write, reads = access, []
        else:
            if last_write is not None:
                yield last_write, access
            reads.append(access)
