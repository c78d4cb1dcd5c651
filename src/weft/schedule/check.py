"""Checks of a Schedule: what it means can be carried out, and twice in a row.

Ranks that do the same are looked at once. What is checked: commands stand on queues that
can run them, slices lie inside their buffers, every Wait has its Signals, everything can
happen, no two commands touch the same bytes in no order, and whatever others do to a
rank's buffers happens between its entry and its exit, so that a Schedule can be run again
with the caller touching its buffers in between, by ranks of which some are an execution ahead
of others. The error names the guilty commands.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import BoundsError, ScheduleError
from weft.schedule.again import settled
from weft.schedule.inline import inline
from weft.schedule.ir import Kind, Signal, Submit, Wait
from weft.schedule.layout import uses_alike
from weft.schedule.order import find_order
from weft.schedule.races import check_entry_and_exit, check_races, touches_of
from weft.schedule.symmetry import BOTH, Symmetry, find_symmetry, natural_dims, nothing_alike
from weft.schedule.table import Table, write_out

if TYPE_CHECKING:
    from weft.schedule.ir import Command
    from weft.schedule.schedule import Schedule

QUEUE_NAME = re.compile(r"(stream|copy|nic)\d+|host")
_MOVES = (Kind.COPY, Kind.BROADCAST, Kind.SWAP)
_WORK = (Kind.REDUCE, Kind.ENCODE, Kind.DECODE, Kind.KERNEL)
# What may stand where. Signals, waits and calls may stand anywhere.
_ALLOWED = {
    "stream": (Kind.KERNEL, Kind.LAUNCH, Kind.REDUCE, Kind.ENCODE, Kind.DECODE),
    "copy": _MOVES,
    "nic": _MOVES,
    "host": (Kind.SUBMIT, Kind.KERNEL),  # work of the host itself
    "lane": (*_MOVES, *_WORK),
}
_ANYWHERE = (Kind.SIGNAL, Kind.WAIT, Kind.CALL)


def check(schedule: Schedule, *, collapse: bool = True) -> None:
    """Raise the first thing that is wrong with ``schedule``; return if there is none."""
    flat = inline(schedule)
    _check_programs(flat)
    dims = natural_dims(flat) if collapse else (flat.num_ranks,)
    symmetry = find_symmetry(flat, dims, [BOTH] * len(dims)) if collapse else nothing_alike(dims)
    if not uses_alike(flat, symmetry):
        symmetry = nothing_alike(dims)
    table = write_out(flat, symmetry.representatives(), seen_by=symmetry.seen_by)
    _check_places(table)
    _check_flags(table)
    _check_bounds(table, symmetry)
    order = settled(find_order(table, symmetry))
    touches = touches_of(table, symmetry)
    check_entry_and_exit(order, touches)
    check_races(order, touches)


def _check_programs(flat: Schedule) -> None:
    if flat.num_ranks < 1:
        raise ScheduleError(f"{flat.name} has {flat.num_ranks} ranks.", "Use 1 or more.")
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


def _check_places(table: Table) -> None:
    """Commands stand on queues that can run them."""
    places = list(_ALLOWED)
    may = np.zeros((len(places), len(Kind)), bool)
    for number, allowed in enumerate(_ALLOWED.values()):
        may[number, [*allowed, *_ANYWHERE]] = True
    names = (queue.name.rstrip("0123456789") for queue in table.thread_queue_of)
    of_queue = np.array([places.index(name) for name in names], np.int64)
    of_thread = np.where(table.thread_lane < 0, of_queue[table.thread_decl], places.index("lane"))
    wrong = ~may[of_thread[table.thread], table.kind]
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ScheduleError(
            f"{table.where(row)} cannot stand on a {places[of_thread[table.thread[row]]]}.",
            "Bare copies go on copy or nic queues, work on streams, Submit and what the host does "
            "itself on host; copies by compute units go into the lanes of a Launch.",
        )


def _check_flags(table: Table) -> None:
    limit, num_ranks = table.schedule.num_flags, table.schedule.num_ranks
    used = np.array([_names_flag(command) for command in table.commands], bool)[table.command]
    wrong = used & ((table.flag_index < 0) | (table.flag_index >= limit))
    wrong |= used & ((table.flag_rank < 0) | (table.flag_rank >= num_ranks))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BoundsError(
            f"{table.where(row)} uses flag {table.flag_index[row]}@{table.flag_rank[row]}; each of "
            f"{num_ranks} ranks has {limit} flags."
        )
    submits = table.kind == Kind.SUBMIT
    wrong = submits & (table.count < 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ScheduleError(
            f"{table.where(row)} hands over {table.count[row]} commands.",
            "A Submit hands over at least one.",
        )
    waits = table.kind == Kind.WAIT
    wrong = waits & (table.flag_rank != table.thread_rank[table.thread])
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ScheduleError(
            f"{table.where(row)} waits for a flag of rank {table.flag_rank[row]}.",
            "A flag is owned by the rank that waits for it.",
        )


def _names_flag(command: Command) -> bool:
    held = isinstance(command, Submit) and command.hold is not None
    return held or isinstance(command, Signal | Wait)


def _check_bounds(table: Table, symmetry: Symmetry) -> None:
    """Every slice lies in its buffer, and what is copied fits where it goes."""
    if not len(table.access_rank):
        return
    outside = (table.access_rank < 0) | (table.access_rank >= table.schedule.num_ranks)
    if outside.any():
        access = int(np.argmax(outside))
        raise BoundsError(
            f"{table.where(_row_of(table, access))} touches rank {table.access_rank[access]}; "
            f"there are {table.schedule.num_ranks} ranks."
        )
    owner = symmetry.representative(table.access_rank.astype(np.int64))
    size = np.zeros(len(owner), np.int64)
    for number, buffer in enumerate(table.schedule.buffers):
        mine = table.access_buffer == number
        sizes = buffer.nbytes
        size[mine] = sizes if isinstance(sizes, int) else np.asarray(sizes)[owner[mine]]
    start, nbytes = table.access_offset, table.access_nbytes
    # Not their sum, which may be more than 64 bits hold.
    wrong = (start < 0) | (nbytes < 0) | (start > size) | (nbytes > size - start)
    if wrong.any():
        access = int(np.argmax(wrong))
        stop = int(start[access]) + int(nbytes[access])
        raise BoundsError(
            f"{table.where(_row_of(table, access))} touches bytes {start[access]} to {stop} of "
            f"{table.buffers[table.access_buffer[access]]}@{owner[access]}, which has "
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


def _row_of(table: Table, access: int) -> int:
    return int(np.searchsorted(table.access_start, access, side="right")) - 1
