"""Checks that a Schedule can be executed, and executed repeatedly.

The checks: every command is on a queue that can run it, every slice is inside its buffer, every
Wait has its Signals, there is no deadlock, conflicting accesses to the same bytes are ordered, and
a rank's buffers are accessed by others only between its entry and its exit. The last check lets
callers touch their buffers between executions, even if some ranks are one execution ahead. Ranks
that behave the same are checked once. Errors name the commands involved.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import BoundsError, ScheduleError
from weft.schedule.buffer_symmetry import buffers_are_symmetric
from weft.schedule.happens_before import compute_happens_before
from weft.schedule.inline import inline
from weft.schedule.ir import CommandKind, Signal, Submit, Wait
from weft.schedule.races import check_entry_and_exit, check_races, memory_accesses
from weft.schedule.rank_symmetry import BOTH, Symmetry, find_symmetry, natural_dims, no_symmetry
from weft.schedule.reentrancy import mark_unsafe_flags
from weft.schedule.table import CommandTable, expand

if TYPE_CHECKING:
    from weft.schedule.ir import Command
    from weft.schedule.schedule import Schedule

QUEUE_NAME = re.compile(r"(stream|copy|nic)\d+|host")
_MOVES = (CommandKind.COPY, CommandKind.BROADCAST, CommandKind.SWAP)
_WORK = (CommandKind.REDUCE, CommandKind.ENCODE, CommandKind.DECODE, CommandKind.KERNEL)
# Command kinds allowed on each kind of queue. Signals, waits and calls are allowed everywhere.
_ALLOWED = {
    "stream": (
        CommandKind.KERNEL,
        CommandKind.LAUNCH,
        CommandKind.REDUCE,
        CommandKind.ENCODE,
        CommandKind.DECODE,
    ),
    "copy": _MOVES,
    "nic": _MOVES,
    "host": (CommandKind.SUBMIT, CommandKind.KERNEL),  # work of the host itself
    "lane": (*_MOVES, *_WORK),
}
_ANYWHERE = (CommandKind.SIGNAL, CommandKind.WAIT, CommandKind.CALL)


def check(schedule: Schedule, *, collapse: bool = True) -> None:
    """Raise the first error found in ``schedule``; return None if there is none."""
    flat = inline(schedule)
    _check_programs(flat)
    dims = natural_dims(flat) if collapse else (flat.num_ranks,)
    symmetry = find_symmetry(flat, dims, [BOTH] * len(dims)) if collapse else no_symmetry(dims)
    if not buffers_are_symmetric(flat, symmetry):
        symmetry = no_symmetry(dims)
    table = expand(flat, symmetry.representatives(), seen_by=symmetry.seen_by)
    _check_places(table)
    _check_flags(table)
    _check_bounds(table, symmetry)
    order = mark_unsafe_flags(compute_happens_before(table, symmetry))
    touches = memory_accesses(table, symmetry)
    check_entry_and_exit(order, touches)
    check_races(order, touches)


def _check_programs(flat: Schedule) -> None:
    if flat.num_ranks < 1:
        raise ScheduleError(
            f"schedule {flat.name}: num_ranks is {flat.num_ranks}, expected 1 or more.",
            "Use at least 1 rank.",
        )
    seen: dict[str, set[int]] = defaultdict(set)
    for program in flat.programs:
        ranks = set(program.ranks)
        outside = [r for r in program.ranks if not 0 <= r < flat.num_ranks]
        if outside:
            raise ScheduleError(
                f"schedule {flat.name}: a program lists rank {outside[0]}, expected 0 to "
                f"{flat.num_ranks - 1}."
            )
        for queue in program.queues:
            if not QUEUE_NAME.fullmatch(queue.name):
                raise ScheduleError(
                    f"unknown queue {queue.name!r}.",
                    "Queues are named stream0.., copy0.., nic0.. and host.",
                )
            twice = seen[queue.name] & ranks
            if twice:
                raise ScheduleError(
                    f"queue {queue.name}@{min(twice)} is defined by two programs.",
                    "Put all commands of a queue into one program.",
                )
            seen[queue.name] |= ranks


def _check_places(table: CommandTable) -> None:
    """Check that commands are on queues that can run them."""
    places = list(_ALLOWED)
    may = np.zeros((len(places), len(CommandKind)), bool)
    for number, allowed in enumerate(_ALLOWED.values()):
        may[number, [*allowed, *_ANYWHERE]] = True
    names = (queue.name.rstrip("0123456789") for queue in table.thread_queue_of)
    of_queue = np.array([places.index(name) for name in names], np.int64)
    of_thread = np.where(table.thread_lane < 0, of_queue[table.thread_decl], places.index("lane"))
    wrong = ~may[of_thread[table.thread], table.kind]
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ScheduleError(
            f"{table.where(row)} cannot run on a {places[of_thread[table.thread[row]]]}.",
            "Put bare copies on copy or nic queues, kernels on streams, Submit and host kernels on "
            "host, and copies by compute units into the lanes of a Launch.",
        )


def _check_flags(table: CommandTable) -> None:
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
    submits = table.kind == CommandKind.SUBMIT
    wrong = submits & (table.count < 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ScheduleError(
            f"{table.where(row)}: count is {table.count[row]}, expected 1 or more.",
            "A Submit hands over at least one command.",
        )
    waits = table.kind == CommandKind.WAIT
    wrong = waits & (table.flag_rank != table.thread_rank[table.thread])
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ScheduleError(
            f"{table.where(row)} waits for a flag of rank {table.flag_rank[row]}.",
            "A rank can wait only for flags that it owns.",
        )


def _names_flag(command: Command) -> bool:
    held = isinstance(command, Submit) and command.hold is not None
    return held or isinstance(command, Signal | Wait)


def _check_bounds(table: CommandTable, symmetry: Symmetry) -> None:
    """Check that slices are inside their buffers, and both sides of a copy have equal sizes."""
    if not len(table.access_rank):
        return
    outside = (table.access_rank < 0) | (table.access_rank >= table.schedule.num_ranks)
    if outside.any():
        access = int(np.argmax(outside))
        raise BoundsError(
            f"{table.where(_row_of(table, access))} accesses rank {table.access_rank[access]}, "
            "expected 0 to "
            f"{table.schedule.num_ranks - 1}."
        )
    owner = symmetry.representative(table.access_rank.astype(np.int64))
    size = np.zeros(len(owner), np.int64)
    for number, buffer in enumerate(table.schedule.buffers):
        mine = table.access_buffer == number
        sizes = buffer.nbytes
        size[mine] = sizes if isinstance(sizes, int) else np.asarray(sizes)[owner[mine]]
    start, nbytes = table.access_offset, table.access_nbytes
    # Their sum could overflow 64 bits.
    wrong = (start < 0) | (nbytes < 0) | (start > size) | (nbytes > size - start)
    if wrong.any():
        access = int(np.argmax(wrong))
        stop = int(start[access]) + int(nbytes[access])
        raise BoundsError(
            f"{table.where(_row_of(table, access))} accesses bytes {start[access]} to {stop} of "
            f"{table.buffers[table.access_buffer[access]]}@{owner[access]}, which has "
            f"{size[access]}.",
            "Use offsets and sizes inside the buffer, or declare a larger buffer.",
        )
    same = np.isin(table.kind, _MOVES) | (table.kind == CommandKind.REDUCE)
    row_of = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
    first = table.access_nbytes[np.minimum(table.access_start[row_of], len(nbytes) - 1)]
    wrong = same[row_of] & (table.access_nbytes != first)
    if wrong.any():
        row = int(row_of[np.argmax(wrong)])
        raise BoundsError(
            f"{table.where(row)} has slices of different sizes.",
            "Source and destination of a copy must have equal sizes.",
        )


def _row_of(table: CommandTable, access: int) -> int:
    return int(np.searchsorted(table.access_start, access, side="right")) - 1
