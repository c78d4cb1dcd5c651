"""Which flags keep their meaning when a rank is an execution ahead of the others.

Nothing resets a flag, so what several ranks raise is a sum, in which a signal of the next
execution may stand for one of this execution that has not come yet. It cannot if whoever
raises the flag is held back: some rank, its owner or another, leaves after the owner's wait
is over, and has entered again before the signal. Of flags for which that is not so no wait is
sure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.schedule.knowledge import Knowledge, Senders, element_of, moved
from weft.schedule.order import PLACES, keys, spans
from weft.schedule.races import Acts, SureSignals

if TYPE_CHECKING:
    from weft.schedule.order import Order

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]


def settled(order: Order) -> Order:
    """``order`` with its loose flags marked.

    That a sender is held back is known from waits, of which those of loose flags are no proof:
    so they are looked for until no more are found.
    """
    while len(loose := _loose(order)):
        marked = order.loose.copy()
        marked[loose] = True
        order = replace(order, loose=marked)
    return order


def _loose(order: Order) -> list[int]:
    """The flags, not marked yet, that somebody may raise again before a wait for all is over."""
    sure = SureSignals(order)
    counter = order.counter[sure.signals]
    most = np.zeros(len(order.total), np.int64)
    flags = np.flatnonzero(order.holds & (order.counter < order.first_private))
    np.maximum.at(most, order.counter[flags], order.amount[flags])
    # Who waits for one of several is sure of nobody anyway.
    several = ~sure.single & ~order.loose & (most > 1)
    waits = flags[several[order.counter[flags]]]
    waits = waits[order.amount[waits] == most[order.counter[waits]]]
    signals = sure.signals[several[counter]]
    free = signals[~_held_at_a_glance(order, sure, signals, waits)]
    if not len(free):
        return []
    look = _Look(order)
    found = []
    for flag in np.unique(order.counter[free]).tolist():
        if look.senders.sure(flag, int(most[flag])):
            ends = waits[order.counter[waits] == flag]
            mine = free[order.counter[free] == flag]
            if not all(look.held(int(signal), ends) for signal in mine):
                found.append(flag)
    return found


def _held_at_a_glance(order: Order, sure: SureSignals, signals: Ints, waits: Ints) -> Bools:
    """Signals whose sender is the owner, has heard from it, or waits for it before it leaves."""
    table = order.table
    row, thread = order.row[signals], order.thread[signals].astype(np.int64)
    owner = table.flag_rank[row].astype(np.int64)
    held: Bools = table.thread_rank[thread] == owner
    held |= sure.heard_from_owner(Acts(row, thread, order.place[signals], owner))
    told = np.unique(_told(order, sure, waits))
    key = order.counter[signals] * sure.num_ranks + order.sender[signals]
    return held | np.isin(key, told)


def _told(order: Order, sure: SureSignals, waits: Ints) -> Ints:
    """For each wait the ranks that wait for a signal its thread sends afterwards, as keys."""
    table, answers = order.table, sure.awaited()
    places = keys(order.thread[answers], order.place[answers])
    told = []
    thread = order.thread[waits].astype(np.int64)
    launch = table.thread_launch[thread].astype(np.int64)
    around = np.where(launch < 0, thread, table.thread[launch])
    for mine, place in ((thread, order.place[waits]), (around, launch * PLACES)):
        there = place >= 0  # in a thread around it: only where there is one
        first = np.searchsorted(places, keys(mine, place)[there], side="right")
        stop = np.searchsorted(order.thread[answers], mine[there], side="right")
        to = table.flag_rank[order.row[answers[spans(first, stop)]]].astype(np.int64)
        told.append(np.repeat(order.counter[waits][there], stop - first) * sure.num_ranks + to)
    return np.concatenate(told)


class _Look:
    """Whether senders are held back, by all that every thread knows."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.senders = Senders(order)
        self.ranks = np.unique(order.table.thread_rank).tolist()
        self.elements = np.arange(order.symmetry.represents)
        self.entries: dict[int, Knowledge] = {}
        self.left: dict[int, dict[int, Ints]] = {}

    def held(self, signal: int, waits: Ints) -> bool:
        """Whether a signal comes after somebody's entry who left after one of the waits."""
        order = self.order
        thread, place = int(order.thread[signal]), int(order.place[signal])
        sender = element_of(order.symmetry, np.asarray(order.sender[signal], np.int64))
        for wait in waits.tolist():
            for rank, elements in self._left_after(wait).items():
                known = self._entry(rank).at(thread, place)
                seen = moved(order.symmetry, np.full_like(elements, sender), elements, -1)
                if (known[seen] >= 0).any():
                    return True
        return False

    def _left_after(self, wait: int) -> dict[int, Ints]:
        """By representative: which of those that it stands for leave after a wait is over."""
        if wait not in self.left:
            order, table = self.order, self.order.table
            thread, place = int(order.thread[wait]), int(order.place[wait])
            known = Knowledge(order, self.senders, source=thread)
            end = table.num_rows * PLACES
            self.left[wait] = {}
            for rank in self.ranks:
                mine = np.flatnonzero((table.thread_rank == rank) & (table.thread_lane < 0))
                learnt = np.max([known.at(int(t), end) for t in mine], axis=0)
                after = learnt >= place
                after[0] |= rank == table.thread_rank[thread]
                self.left[wait][rank] = self.elements[after]
        return self.left[wait]

    def _entry(self, rank: int) -> Knowledge:
        if rank not in self.entries:
            self.entries[rank] = Knowledge(self.order, self.senders, entry_of=rank)
        return self.entries[rank]
