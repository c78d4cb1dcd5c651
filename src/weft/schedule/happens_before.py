"""The happens-before relation of a schedule, which holds whatever the speed of its ranks.

Threads (queues and lanes) are ordered by their text and synchronized by counters: flags, and
likewise the start and end of a launch's lanes and the doorbells of submissions. An *event*
increments a counter or waits for it. Events are stored as columns, so that a million events take a
second.

Ranks may be representatives of symmetry classes (see rank_symmetry). A rank is then named as it
appears from the representative.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import DeadlockError, FlagError
from weft.schedule.ir import CommandKind
from weft.schedule.rank_symmetry import Symmetry
from weft.schedule.table import CommandTable

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

# The place of an event: four places per row, so that events around a command have their own.
# A doorbell is waited for before a command acts, the end of its lanes after.
PLACES, DOOR, SELF_PLACE, JOIN = 4, 0, 2, 3


@dataclass(frozen=True, slots=True)
class HappensBefore:
    """All events, sorted by thread and place, and the round in which each happens."""

    table: CommandTable
    symmetry: Symmetry
    thread: Ints
    place: Ints
    row: Ints  # the command it belongs to
    holds: Bools  # a wait, else a signal
    counter: Ints
    amount: Ints  # threshold of a wait, increment of a signal
    sender: Ints  # the rank that signals, as seen by the owner of the counter
    total: Ints  # by counter: the sum of all signals
    when: Ints  # the round in which an event happens
    first_private: int  # counters from here on are not flags
    unsafe: Bools  # by counter: a wait does not prove which rank has signalled (see reentrancy)

    def last_before(self, thread: Ints, place: Ints) -> Ints:
        """Return the round of the last event of a thread before a place; -1 if there is none."""
        if not len(self.thread):
            return np.full(len(thread), -1)
        event = np.searchsorted(keys(self.thread, self.place), keys(thread, place)) - 1
        same = (event >= 0) & (self.thread[event] == thread)
        return np.where(same, self.when[event], -1)


def keys(thread: Any, place: Any) -> Any:
    """Return sort keys of (thread, place), in the order of events."""
    # 36 bits hold four places for each of MAX_ROWS rows; 27 are left for threads.
    return (np.asarray(thread, np.int64) << 36) + place


def compute_happens_before(table: CommandTable, symmetry: Symmetry) -> HappensBefore:
    """Compute the happens-before relation of a table; raise an error on a deadlock."""
    events = _Events(table, symmetry)
    columns = events.sorted()
    total = np.bincount(
        columns["counter"][~columns["holds"]],
        columns["amount"][~columns["holds"]],
        minlength=events.num_counters,
    ).astype(np.int64)
    # Check that every Wait has as many Signals as it waits for.
    flags = columns["holds"] & (columns["counter"] < events.first_private)
    short = np.flatnonzero(flags & (total[columns["counter"]] < columns["amount"]))
    if len(short):
        event = short[0]
        row, counter = int(columns["row"][event]), int(columns["counter"][event])
        rank, index = divmod(counter, table.schedule.num_flags)
        raise FlagError(
            f"{table.where(row)} waits for {columns['amount'][event]} signals of flag {index}@"
            f"{rank}, which receives {total[counter]}.",
            "Add the missing Signals or lower the count.",
        )
    when = _rounds(columns, events.num_counters, len(table.thread_rank))
    order = HappensBefore(
        table,
        symmetry,
        **columns,
        total=total,
        when=when,
        first_private=events.first_private,
        unsafe=np.zeros(len(total), bool),
    )
    _check_all_happened(order)
    return order


class _Events:
    """Collects every event of a table, kind by kind."""

    def __init__(self, table: CommandTable, symmetry: Symmetry) -> None:
        self.table = table
        self.symmetry = symmetry
        self.pieces: list[dict[str, Any]] = []
        num_flags = table.schedule.num_flags
        self.first_private = table.schedule.num_ranks * num_flags
        self.launches = np.flatnonzero(table.kind == CommandKind.LAUNCH)
        self.first_door = self.first_private + 2 * len(self.launches)
        self.num_counters = self.first_door + len(table.thread_rank)
        self._flags(num_flags)
        self._lanes()
        self._doors(num_flags)

    def _add(
        self,
        thread: Any,
        place: Any,
        row: Any,
        *,
        holds: bool,
        counter: Any,
        amount: Any,
        sender: Any = 0,
    ) -> None:
        num = len(row)
        narrow = {"thread": thread, "row": row, "sender": sender}
        wide = {"place": place, "counter": counter, "amount": amount}
        piece = {k: np.broadcast_to(np.asarray(v, np.int32), num) for k, v in narrow.items()}
        piece |= {k: np.broadcast_to(np.asarray(v, np.int64), num) for k, v in wide.items()}
        self.pieces.append({**piece, "holds": np.full(num, holds)})

    def _flag_counter(self, rows: Ints, num_flags: int) -> Ints:
        owner: Ints = self.symmetry.representative(self.table.flag_rank[rows].astype(np.int64))
        return owner * num_flags + self.table.flag_index[rows]

    def _flags(self, num_flags: int) -> None:
        table = self.table
        for kind, holds in ((CommandKind.SIGNAL, False), (CommandKind.WAIT, True)):
            rows = np.flatnonzero(table.kind == kind)
            thread = table.thread[rows]
            runner = table.thread_rank[thread].astype(np.int64)
            sender = self.symmetry.seen_by(runner, table.flag_rank[rows].astype(np.int64))
            self._add(
                thread,
                rows * PLACES + SELF_PLACE,
                rows,
                holds=holds,
                counter=self._flag_counter(rows, num_flags),
                amount=table.count[rows] if holds else 1,
                sender=sender,
            )

    def _lanes(self) -> None:
        """Add the events of launches: a launch starts its lanes and waits until all have ended."""
        table = self.table
        lanes = np.flatnonzero(table.thread_launch >= 0)
        launch = table.thread_launch[lanes].astype(np.int64)
        number = np.searchsorted(self.launches, launch)
        start = self.first_private + 2 * number
        rank = table.thread_rank[lanes]
        first, stop = table.thread_start[lanes], table.thread_stop[lanes]
        # Place -1 is between the last of one command and the first of the next: a lane starts
        # before its first command and ends after its last, even if it is empty.
        self._add(lanes, first * PLACES - 1, first, holds=True, counter=start, amount=1)
        self._add(
            lanes,
            stop * PLACES - 1,
            np.maximum(stop - 1, first),
            holds=False,
            counter=start + 1,
            amount=1,
            sender=rank,
        )
        rows = self.launches
        thread, every = table.thread[rows], np.arange(len(rows))
        counter = self.first_private + 2 * every
        count = np.bincount(number, minlength=len(rows))
        rank = table.thread_rank[thread]
        here = rows * PLACES
        self._add(
            thread, here + SELF_PLACE, rows, holds=False, counter=counter, amount=1, sender=rank
        )
        self._add(thread, here + JOIN, rows, holds=True, counter=counter + 1, amount=count)

    def _doors(self, num_flags: int) -> None:
        """Add the events of submissions: commands wait for their Submit's doorbell and hold."""
        table = self.table
        submits = np.flatnonzero(table.kind == CommandKind.SUBMIT)
        queues = np.flatnonzero(table.thread_lane < 0)
        names = {
            (int(table.thread_rank[t]), int(table.thread_queue[t])): t for t in queues.tolist()
        }
        taken: dict[int, int] = {}
        for row in submits.tolist():
            target = (int(table.target_rank[row]), int(table.target_queue[row]))
            if target not in names:
                raise FlagError(
                    f"{table.where(row)} submits to {table.queues[target[1]]}@{target[0]}, which "
                    "has "
                    "no commands."
                )
            thread, count = names[target], int(table.count[row])
            mine = np.flatnonzero((table.thread == thread) & (table.fed >= taken.get(thread, 0)))
            mine = mine[table.fed[mine] < taken.get(thread, 0) + count]
            taken[thread] = taken.get(thread, 0) + count
            self._submitted(row, thread, mine, num_flags)
        self._check_handed(taken)

    def _submitted(self, row: int, thread: int, mine: Ints, num_flags: int) -> None:
        table = self.table
        host = table.thread[row]
        door = self.first_door + thread
        here = np.array([row])
        self._add(
            host,
            here * PLACES + SELF_PLACE,
            here,
            holds=False,
            counter=door,
            amount=table.count[row],
            sender=table.thread_rank[host],
        )
        # Submits add their counts to the doorbell, so the n-th command of a queue waits for n.
        threshold = table.fed[mine] + 1
        self._add(thread, mine * PLACES + DOOR, mine, holds=True, counter=door, amount=threshold)
        if table.flag_rank[row] >= 0:
            hold = self._flag_counter(here, num_flags)[0]
            self._add(thread, mine * PLACES + DOOR, mine, holds=True, counter=hold, amount=1)

    def _check_handed(self, taken: dict[int, int]) -> None:
        table = self.table
        for thread, handed in taken.items():
            have = int(((table.thread == thread) & (table.fed >= 0)).sum())
            if handed != have:
                queue = f"{table.queues[table.thread_queue[thread]]}@{table.thread_rank[thread]}"
                raise FlagError(
                    f"{handed} commands are submitted to {queue}, which has {have}.",
                    "The counts of all Submits to a queue must add up to its commands.",
                )

    def sorted(self) -> dict[str, Any]:
        joined = {k: np.concatenate([p[k] for p in self.pieces]) for k in self.pieces[0]}
        by_place = np.argsort(keys(joined["thread"], joined["place"]), kind="stable")
        return {name: column[by_place] for name, column in joined.items()}


def _rounds(columns: dict[str, Any], num_counters: int, num_threads: int) -> Ints:
    """Return the round in which each event happens if every thread runs as far as it can.

    A satisfied wait belongs to the round after the signals that satisfied it. The order inside a
    round does not matter, because counters only rise.
    """
    num = len(columns["thread"])
    when = np.full(num, -1, np.int64)
    holds, counter, amount = columns["holds"], columns["counter"], columns["amount"]
    bounds = np.searchsorted(columns["thread"], np.arange(num_threads + 1))
    next_wait = np.append(np.where(holds, np.arange(num), num), num)
    next_wait = np.minimum.accumulate(next_wait[::-1])[::-1]
    at, stop = bounds[:-1].copy(), bounds[1:]
    raised = np.zeros(num_counters, np.int64)
    moving = np.flatnonzero(at < stop)
    number = 0
    # Like Kahn's topological sort, but of threads instead of single events.
    # As many rounds as the longest chain of signals, not as many as there are events.
    while len(moving):
        until = np.minimum(next_wait[at[moving]], stop[moving])
        done = spans(at[moving], until)
        signals = done[~holds[done]]
        when[done] = number
        np.add.at(raised, counter[signals], amount[signals])
        at[moving] = until
        waiting = np.flatnonzero(at < stop)
        ready = raised[counter[at[waiting]]] >= amount[at[waiting]]
        moving = waiting[ready]
        number += 1
        when[at[moving]] = number
        next_wait_after = at[moving] + 1
        at[moving] = next_wait_after
    return when


def spans(start: Ints, stop: Ints) -> Ints:
    """Return the concatenated ranges from each start to its stop."""
    length = stop - start
    offset: Ints = np.repeat(start - (np.cumsum(length) - length), length)
    return np.arange(len(offset)) + offset


def _check_all_happened(order: HappensBefore) -> None:
    never = np.flatnonzero(order.when < 0)
    if not len(never):
        return
    _, first = np.unique(order.thread[never], return_index=True)
    heads = never[first]
    # Lanes that never started, and launches that wait for them, only repeat what blocks another.
    real = heads[order.counter[heads] < order.first_private]
    stuck = real if len(real) else heads
    told = "; ".join(_stuck_at(order, int(event)) for event in stuck[:4])
    more = f" and {len(stuck) - 4} more" if len(stuck) > 4 else ""
    raise DeadlockError(
        f"deadlock: {len(stuck)} commands can never start: {told}{more}.",
        "Every Wait needs that many Signals of its flag that do not themselves wait on it.",
    )


def _stuck_at(order: HappensBefore, event: int) -> str:
    table, counter = order.table, order.counter[event]
    where = table.where(int(order.row[event]))
    if counter >= order.first_private:
        return f"{where} (never handed over)"
    signals = ~order.holds & (order.counter == counter) & (order.when >= 0)
    have = int(order.amount[signals].sum())
    index = int(counter) % table.schedule.num_flags
    return f"{where} (flag {index}, {have} of {order.amount[event]} signals)"
