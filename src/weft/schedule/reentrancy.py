"""Re-entrancy: which flags stay unambiguous when one rank is an execution ahead of the others.

Flags are never reset. When several ranks signal one flag, a signal of the next execution can be
counted in place of a missing signal of this one. That is impossible if the sender is held back:
some rank (the owner or another one) leaves the execution only after the owner's wait has ended, and
the sender signals only after that rank has entered again. All other flags are *unsafe*: a wait for
them proves nothing about which has signalled.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from weft.schedule.happens_before import PLACES, HappensBefore, keys, spans
from weft.schedule.races import CertainSignals, RemoteActions
from weft.schedule.vector_clock import CertainSenders, VectorClock, element_of, moved

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def mark_unsafe_flags(order: HappensBefore) -> HappensBefore:
    """Return ``order`` with its unsafe flags marked.

    Waits prove that a sender is held back, but waits for unsafe flags prove nothing. The search is
    repeated until it finds no more unsafe flags.
    """
    while len(unsafe := _find_unsafe(order)):
        marked = order.unsafe.copy()
        marked[unsafe] = True
        order = replace(order, unsafe=marked)
    return order


def _find_unsafe(order: HappensBefore) -> list[int]:
    """Return unmarked flags that a rank may signal again before a wait for all signals ends."""
    certain = CertainSignals(order)
    counter = order.counter[certain.signals]
    most = np.zeros(len(order.total), np.int64)
    flags = np.flatnonzero(order.holds & (order.counter < order.first_private))
    np.maximum.at(most, order.counter[flags], order.amount[flags])
    # A wait for fewer than all signals of several senders identifies no sender anyway.
    several = ~certain.single & ~order.unsafe & (most > 1)
    waits = flags[several[order.counter[flags]]]
    waits = waits[order.amount[waits] == most[order.counter[waits]]]
    signals = certain.signals[several[counter]]
    free = signals[~_held_back_simply(order, certain, signals, waits)]
    if not len(free):
        return []
    look = _SenderAnalysis(order)
    found = []
    for flag in np.unique(order.counter[free]).tolist():
        if look.senders.certain(flag, int(most[flag])):
            ends = waits[order.counter[waits] == flag]
            mine = free[order.counter[free] == flag]
            if not all(look.is_held_back(int(signal), ends) for signal in mine):
                found.append(flag)
    return found


def _held_back_simply(
    order: HappensBefore, certain: CertainSignals, signals: Ints, waits: Ints
) -> Bools:
    """Return whether each signal is held back by simple evidence.

    The sender is the owner, has heard from the owner, or waits for the owner before it leaves.
    """
    table = order.table
    row, thread = order.row[signals], order.thread[signals].astype(np.int64)
    owner = table.flag_rank[row].astype(np.int64)
    held: Bools = table.thread_rank[thread] == owner
    held |= certain.heard_from_owner(RemoteActions(row, thread, order.place[signals], owner))
    told = np.unique(_notified(order, certain, waits))
    key = order.counter[signals] * certain.num_ranks + order.sender[signals]
    return held | np.isin(key, told)


def _notified(order: HappensBefore, certain: CertainSignals, waits: Ints) -> Ints:
    """Return, as keys, the ranks that wait for a signal which a waiting thread sends afterwards."""
    table, answers = order.table, certain.awaited()
    places = keys(order.thread[answers], order.place[answers])
    told = []
    thread = order.thread[waits].astype(np.int64)
    launch = table.thread_launch[thread].astype(np.int64)
    around = np.where(launch < 0, thread, table.thread[launch])
    for mine, place in ((thread, order.place[waits]), (around, launch * PLACES)):
        there = place >= 0  # the enclosing thread, if there is one
        first = np.searchsorted(places, keys(mine, place)[there], side="right")
        stop = np.searchsorted(order.thread[answers], mine[there], side="right")
        to = table.flag_rank[order.row[answers[spans(first, stop)]]].astype(np.int64)
        told.append(np.repeat(order.counter[waits][there], stop - first) * certain.num_ranks + to)
    return np.concatenate(told)


class _SenderAnalysis:
    """Decides whether senders are held back, from everything that each thread knows."""

    def __init__(self, order: HappensBefore) -> None:
        self.order = order
        self.senders = CertainSenders(order)
        self.ranks = np.unique(order.table.thread_rank).tolist()
        self.elements = np.arange(order.symmetry.represents)
        self.entries: dict[int, VectorClock] = {}
        self.left: dict[int, dict[int, Ints]] = {}

    def is_held_back(self, signal: int, waits: Ints) -> bool:
        """Return whether a signal follows the entry of a rank that left after one of the waits."""
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
        """Return by representative which of its ranks leave after a wait has ended."""
        if wait not in self.left:
            order, table = self.order, self.order.table
            thread, place = int(order.thread[wait]), int(order.place[wait])
            known = VectorClock(order, self.senders, source=thread)
            end = table.num_rows * PLACES
            self.left[wait] = {}
            for rank in self.ranks:
                mine = np.flatnonzero((table.thread_rank == rank) & (table.thread_lane < 0))
                learnt = np.max([known.at(int(t), end) for t in mine], axis=0)
                after = learnt >= place
                after[0] |= rank == table.thread_rank[thread]
                self.left[wait][rank] = self.elements[after]
        return self.left[wait]

    def _entry(self, rank: int) -> VectorClock:
        if rank not in self.entries:
            self.entries[rank] = VectorClock(self.order, self.senders, entry_of=rank)
        return self.entries[rank]
