"""Checks of a Schedule: what it means can be carried out, and twice in a row.

Ranks that do the same are looked at once. What is checked: commands stand on queues that
can run them, slices lie inside their buffers, every Wait has its Signals, everything can
happen, no two commands touch the same bytes in no order, and whatever others do to a
rank's buffers happens between its entry and its exit, so that a Schedule can be run again
with the caller touching its buffers in between. The error names the guilty commands.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import BoundsError, RaceError, ScheduleError
from weft.schedule.inline import inline
from weft.schedule.ir import Kind, Launch
from weft.schedule.order import Knowledge, Order, element_of, find_order
from weft.schedule.symmetry import (
    BOTH,
    ROTATE,
    Symmetry,
    find_symmetry,
    natural_dims,
    nothing_alike,
)
from weft.schedule.table import WRITE, Table, write_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.schedule.schedule import Schedule

QUEUE_NAME = re.compile(r"(stream|copy|nic)\d+|host")
_MOVES = (Kind.COPY, Kind.BROADCAST, Kind.SWAP)
_WORK = (Kind.REDUCE, Kind.ENCODE, Kind.DECODE, Kind.KERNEL)
# What may stand where, outside a Launch. Signals, waits and calls may stand anywhere.
_ALLOWED = {
    "stream": (Kind.KERNEL, Kind.LAUNCH, Kind.REDUCE, Kind.ENCODE, Kind.DECODE),
    "copy": _MOVES,
    "nic": _MOVES,
    "host": (Kind.SUBMIT,),
}
_ANYWHERE = (Kind.SIGNAL, Kind.WAIT, Kind.CALL)


def check(schedule: Schedule, *, collapse: bool = True) -> None:
    """Raise the first thing that is wrong with ``schedule``; return if there is none."""
    flat = inline(schedule)
    _check_programs(flat)
    dims = natural_dims(flat) if collapse else (flat.num_ranks,)
    symmetry = find_symmetry(flat, dims, [BOTH] * len(dims)) if collapse else nothing_alike(dims)
    table = write_out(flat, symmetry.representatives(), seen_by=symmetry.seen_by)
    _check_places(table)
    _check_flags(table)
    _check_bounds(table, symmetry)
    order = find_order(table, symmetry)
    touches = _touches(table, symmetry)
    guards = _Guards(order)
    _check_entry_and_exit(order, touches, guards)
    _check_races(order, touches, guards)


def _check_programs(flat: Schedule) -> None:
    seen: dict[str, set[int]] = defaultdict(set)
    for program in flat.programs:
        ranks = set(program.ranks)
        outside = [r for r in program.ranks if not 0 <= r < flat.num_ranks]
        if outside:
            raise ScheduleError(
                f"a program is for rank {outside[0]}; {flat.name} has {flat.num_ranks} ranks."
            )
        for queue in program.queues:
            if not QUEUE_NAME.fullmatch(queue.name):
                raise ScheduleError(
                    f"no queue is called {queue.name!r}.",
                    "Queues are stream0.., copy0.., nic0.. and host.",
                )
            twice = seen[queue.name] & ranks
            if twice:
                raise ScheduleError(
                    f"two programs have {queue.name}@{min(twice)}.",
                    "Put all commands of a queue into one program.",
                )
            seen[queue.name] |= ranks
            _check_lanes(queue.name, queue.commands)


def _check_lanes(queue: str, commands: Any) -> None:  # noqa: ANN401 - commands and loops
    for command in commands:
        if isinstance(command, Launch):
            for lane in command.lanes:
                body = lane if isinstance(lane, tuple) else lane.body
                if any(isinstance(inner, Launch) for inner in body):
                    raise ScheduleError(
                        f"a lane of a Launch on {queue} launches again.",
                        "Lanes hold kernels, moves, signals and waits.",
                    )
        elif hasattr(command, "body"):
            _check_lanes(queue, command.body)


def _check_places(table: Table) -> None:
    """Commands stand on queues that can run them."""
    kind_of = np.array([name.rstrip("0123456789") for name in table.queues] or [""])
    queue = kind_of[table.thread_queue[table.thread]]
    lane = table.thread_lane[table.thread] >= 0
    for name, allowed in _ALLOWED.items():
        wrong = (queue == name) & ~lane & ~np.isin(table.kind, (*allowed, *_ANYWHERE))
        if wrong.any():
            raise ScheduleError(
                f"{table.where(int(np.argmax(wrong)))} cannot stand on a {name} queue.",
                "Bare copies go on copy or nic queues, work on streams, Submit on host; copies "
                "by compute units go inside a Launch.",
            )
    wrong = lane & ~np.isin(table.kind, (*_MOVES, *_WORK, *_ANYWHERE))
    if wrong.any():
        raise ScheduleError(f"{table.where(int(np.argmax(wrong)))} cannot stand in a lane.")


def _check_flags(table: Table) -> None:
    limit = table.schedule.num_flags
    used = table.flag_rank >= 0
    wrong = used & ((table.flag_index < 0) | (table.flag_index >= limit))
    wrong |= used & (table.flag_rank >= table.schedule.num_ranks)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BoundsError(
            f"{table.where(row)} uses flag {table.flag_index[row]}@{table.flag_rank[row]}; each of "
            f"{table.schedule.num_ranks} ranks has {limit} flags."
        )
    waits = table.kind == Kind.WAIT
    wrong = waits & (table.flag_rank != table.thread_rank[table.thread])
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ScheduleError(
            f"{table.where(row)} waits for a flag of rank {table.flag_rank[row]}.",
            "A flag is owned by the rank that waits for it.",
        )


def _check_bounds(table: Table, symmetry: Symmetry) -> None:
    """Every slice lies in its buffer, and what is copied fits where it goes."""
    if not len(table.access_rank):
        return
    owner = symmetry.representative(table.access_rank.astype(np.int64))
    size = np.zeros(len(owner), np.int64)
    for number, buffer in enumerate(table.schedule.buffers):
        mine = table.access_buffer == number
        sizes = buffer.nbytes
        size[mine] = sizes if isinstance(sizes, int) else np.asarray(sizes)[owner[mine]]
    start, nbytes = table.access_offset, table.access_nbytes
    wrong = (start < 0) | (nbytes < 0) | (start + nbytes > size)
    if wrong.any():
        access = int(np.argmax(wrong))
        row = int(np.searchsorted(table.access_start, access, side="right")) - 1
        raise BoundsError(
            f"{table.where(row)} touches bytes {start[access]} to {start[access] + nbytes[access]} "
            f"of {table.buffers[table.access_buffer[access]]}@{owner[access]}, which has "
            f"{size[access]}.",
            "Slices lie inside their buffers.",
        )
    same = np.isin(table.kind, _MOVES) | (table.kind == Kind.REDUCE)
    row_of = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
    first = table.access_nbytes[np.minimum(table.access_start[row_of], len(nbytes) - 1)]
    wrong = same[row_of] & (table.access_nbytes != first)
    if wrong.any():
        row = int(row_of[np.argmax(wrong)])
        raise BoundsError(
            f"{table.where(row)} has slices of different sizes.",
            "Source and destination of a move are equally long.",
        )


@dataclass(frozen=True, slots=True)
class _Touches:
    """Accesses as the owner's representative sees them: by which element, of which bytes."""

    row: Any
    owner: Any  # representative
    owner_element: Any  # of the rank that the runner, itself a representative, touches
    element: Any  # of the rank that touches the representative
    buffer: Any
    start: Any
    stop: Any
    write: Any


def _touches(table: Table, symmetry: Symmetry) -> _Touches:
    row = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
    touched = table.access_rank.astype(np.int64)
    runner = table.thread_rank[table.thread[row]].astype(np.int64)
    some = np.flatnonzero(table.access_nbytes > 0)
    touched, runner, row = touched[some], runner[some], row[some]
    return _Touches(
        row,
        symmetry.representative(touched),
        element_of(symmetry, touched),
        element_of(symmetry, symmetry.seen_by(runner, touched)),
        table.access_buffer[some],
        table.access_offset[some],
        table.access_offset[some] + table.access_nbytes[some],
        (table.access_mode[some] & WRITE) > 0,
    )


class _Guards:
    """Who has heard from whom directly: enough for most accesses, and quick."""

    def __init__(self, order: Order) -> None:
        self.order = order
        table = order.table
        self.rank = table.thread_rank.tolist()
        self.thread_of = table.thread.tolist()
        self.launch_of = table.thread_launch.tolist()
        self.kind = table.kind.tolist()
        self.count = table.count.tolist()
        self.senders: dict[Any, dict[tuple[int, int], int]] = {}
        self.waits = [[r for r in rows if self.kind[r] == Kind.WAIT] for rows in order.rows]
        self.answered = self._answered()

    def heard(self, row: int) -> dict[tuple[int, int], int]:
        """The ranks (and elements) whose signals a Wait guarantees, with their rows."""
        key = (self.order.flag(row), self.count[row])
        if key not in self.senders:
            senders: dict[tuple[int, int], int] = {}
            for one in self.order.guaranteed(*key):
                senders[self.rank[one.thread], one.element] = one.row
            self.senders[key] = senders
        return self.senders[key]

    def entered(self, row: int, owner: int, element: int) -> bool:
        """Whether the owner was heard from before ``row``."""
        thread = self.thread_of[row]
        while True:
            for wait in self.waits[thread]:
                if wait >= row:
                    break
                if (owner, element) in self.heard(wait):
                    return True
            row = self.launch_of[thread]
            if row < 0:
                return False
            thread = self.thread_of[row]

    def _answered(self) -> dict[tuple[int, int, int], int]:
        """For a thread and a rank: the last signal to that rank which it surely waits for."""
        order, table = self.order, self.order.table
        sure: dict[Any, int] = {}
        largest: dict[Any, int] = {}
        for rows in self.waits:
            for row in rows:
                key = order.flag(row)
                largest[key] = max(largest.get(key, 0), self.count[row])
        for key, count in largest.items():
            for one in order.guaranteed(key, count):
                sure[key, one.thread, one.element] = one.row
        answered: dict[tuple[int, int, int], int] = {}
        signals = np.flatnonzero(table.kind == Kind.SIGNAL)
        towards = element_of(order.symmetry, table.flag_rank[signals].astype(np.int64)).tolist()
        senders = {one.row: one.element for sent in order.sent.values() for one in sent}
        for row, element in zip(signals.tolist(), towards, strict=True):
            key, thread = order.flag(row), self.thread_of[row]
            if sure.get((key, thread, senders[row]), -1) >= row:
                answered[thread, key[0], element] = row
        return answered

    def left(self, row: int, owner: int, element: int) -> bool:
        """Whether the owner waits for a signal sent after ``row``."""
        thread = self.thread_of[row]
        while True:
            if self.answered.get((thread, owner, element), -1) > row:
                return True
            row = self.launch_of[thread]
            if row < 0:
                return False
            thread = self.thread_of[row]


def _check_entry_and_exit(order: Order, touches: _Touches, guards: _Guards) -> None:
    """Others touch a rank's buffers only between its entry and its exit."""
    table = order.table
    runner = table.thread_rank[table.thread[touches.row]]
    away = np.flatnonzero((runner != touches.owner) | (touches.element != 0))
    columns = (touches.row, touches.owner, touches.owner_element, touches.element)
    early: dict[int, list[tuple[int, int]]] = defaultdict(list)
    late: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row, owner, owner_element, element in zip(*(c[away].tolist() for c in columns), strict=True):
        if not guards.entered(row, owner, owner_element):
            early[owner].append((row, element))
        if not guards.left(row, owner, owner_element):
            late[int(table.thread[row])].append((row, owner, owner_element))
    for owner, asked in early.items():
        known = Knowledge(order, None, entry_of=owner)
        for row, element in asked:
            if known.at(row, element) < 0:
                raise RaceError(
                    f"{table.where(row)} may touch the buffers of rank {owner} before that rank "
                    "has entered.",
                    "Let the owner signal that it is ready, and wait for that.",
                )
    for thread, left in late.items():
        known = Knowledge(order, thread)
        for row, owner, element in left:
            if not _known_at_exit(order, known, owner, element, row):
                raise RaceError(
                    f"{table.where(row)} may still touch the buffers of rank {owner} after that "
                    "rank has left.",
                    "Signal the owner afterwards, and let it wait for that.",
                )


def _known_at_exit(order: Order, known: Knowledge, owner: int, element: int, row: int) -> bool:
    table = order.table
    mine = np.flatnonzero((table.thread_rank == owner) & (table.thread_lane < 0))
    last = table.num_rows
    return any(known.known(int(t), last)[element] >= row for t in mine)


def _check_races(order: Order, touches: _Touches, guards: _Guards) -> None:
    """Two accesses to the same bytes, one of them a write, have an order."""
    asked: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for x, y in _conflicts(order, touches):
        first, second = int(touches.row[x]), int(touches.row[y])
        element = _relative(order.symmetry, int(touches.element[y]), int(touches.element[x]))
        thread = int(order.table.thread[first])
        same_thread = thread == int(order.table.thread[second]) and element == 0
        if not same_thread and not _hands_over(order, guards, first, second, element):
            asked[thread].append((first, second, element))
    for thread, pairs in asked.items():
        known = Knowledge(order, thread)
        for first, second, element in pairs:
            if known.at(second, element) < first and not _joined(order, first, second, element):
                raise RaceError(
                    f"{order.table.where(first)} and {order.table.where(second)} touch the same "
                    "bytes in no order.",
                    "Join them by a flag: Signal after the one, Wait before the other.",
                )


def _joined(order: Order, first: int, second: int, element: int) -> bool:
    """Whether the first stands in a lane of a launch that ends before the second."""
    table = order.table
    launch = int(table.thread_launch[table.thread[first]])
    if launch < 0 or element != 0:
        return False
    parent = table.thread[launch]
    outer = int(table.thread_launch[table.thread[second]])
    return bool((table.thread[second] == parent and second > launch) or outer > launch and (
        table.thread[outer] == parent
    ))


def _hands_over(order: Order, guards: _Guards, first: int, second: int, element: int) -> bool:
    """Whether a signal behind the first is waited for in front of the second, directly."""
    thread = guards.thread_of[first]
    sender = (guards.rank[thread], _inverse(order.symmetry, element))
    waits = guards.waits[guards.thread_of[second]]
    last = bisect_left(waits, second)
    for wait in waits[max(0, last - 4) : last]:  # further back, knowledge is quicker
        row = guards.heard(wait).get(sender, -1)
        if row > first and guards.thread_of[row] == thread:
            return True
    return False


def _conflicts(order: Order, touches: _Touches) -> Iterator[tuple[int, int]]:
    """Neighbouring accesses to the same bytes, in one order in which all can happen.

    If each is ordered before the next that conflicts with it, all are.
    """
    when = _times(order, touches.row)
    place = touches.owner * len(order.table.buffers) + touches.buffer
    by_place = np.argsort(place, kind="stable")
    bounds = np.flatnonzero(np.diff(place[by_place])) + 1
    for group in np.split(by_place, bounds):
        if len(group) > 1 and touches.write[group].any():
            yield from _conflicts_in(group, touches, when)


def _conflicts_in(group: Any, touches: _Touches, when: Any) -> Iterator[tuple[int, int]]:  # noqa: ANN401
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


def _neighbours(accesses: list[int], write: Any) -> Iterator[tuple[int, int]]:  # noqa: ANN401
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


def _times(order: Order, rows: Any) -> Any:  # noqa: ANN401 - a place in the order for each row
    """The place in the order of the last thing that happened in its thread before a row."""
    table = order.table
    times = np.zeros(len(rows), np.int64)
    starts = [order.when.get(launch, -1) for launch in table.thread_launch.tolist()]
    known: dict[int, tuple[Any, Any]] = {}
    for number, row in enumerate(rows.tolist()):
        thread = int(table.thread[row])
        if thread not in known:
            mine = order.rows[thread]
            known[thread] = (np.array(mine), np.array([order.when[r] for r in mine]))
        mine, happened = known[thread]
        place = int(np.searchsorted(mine, row, side="right")) - 1
        times[number] = happened[place] if place >= 0 else starts[thread]
    return times


def _relative(symmetry: Symmetry, element: int, origin: int) -> int:
    result, size = 0, 1
    for dim, action in zip(symmetry.dims, symmetry.actions, strict=True):
        if action:
            at, zero = element // size % dim, origin // size % dim
            result += ((at - zero) % dim if action == ROTATE else at ^ zero) * size
            size *= dim
    return result


def _inverse(symmetry: Symmetry, element: int) -> int:
    return _relative(symmetry, 0, element)
