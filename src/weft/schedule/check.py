"""Checks that a Schedule can be executed, and executed repeatedly.

The checks: every command is on a queue that can run it, every slice is inside its buffer, every
Wait has its Signals, there is no deadlock, conflicting accesses to the same bytes are ordered, and
a rank's buffers are accessed by others only between its entry and its exit. The last check lets
callers touch their buffers between executions, even if some ranks are one execution ahead. Ranks
that behave the same are checked once. Errors name the commands involved.

Ranks behave the same if they do the same to each other (``rank_symmetry.py``) and access their
buffers symmetrically. The first says nothing about offsets, which differ between ranks. Accesses
are symmetric if a buffer is divided into chunks, every access names its chunk by a position in a
group, and moving the ranks permutes the chunks: then accesses that overlap on one rank overlap on
all. Chunks may be divided again, so the location of an access is written in digits, the coarsest
first.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft._core import reduction_item_bytes
from weft.errors import BoundsError, ScheduleError
from weft.schedule.accesses import accesses
from weft.schedule.happens_before import compute_happens_before
from weft.schedule.inline import inline
from weft.schedule.ir import (
    Broadcast,
    Buffer,
    Command,
    CommandKind,
    Decode,
    Encode,
    Reduce,
    Repeat,
    Signal,
    Slice,
    Submit,
    Swap,
    Wait,
    bodies,
)
from weft.schedule.races import check_entry_and_exit, check_races, memory_accesses
from weft.schedule.rank_symmetry import (
    BOTH,
    Symmetry,
    commutes,
    find_symmetry,
    natural_dims,
    no_symmetry,
)
from weft.schedule.reentrancy import mark_unsafe_flags
from weft.schedule.schedule import Schedule
from weft.schedule.table import CommandTable, expand
from weft.schedule.values import Group, Index, Rel

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
    # Races compare byte ranges. One rank stands for its class only if ranges that overlap there
    # overlap on all of its ranks; otherwise every rank is expanded.
    if not buffers_are_symmetric(flat, symmetry):
        symmetry = no_symmetry(dims)
    table = expand(flat, symmetry.representatives(), seen_by=symmetry.seen_by)
    # Cheap checks first: the order of events is defined only for flags and slices that exist.
    _check_places(table)
    _check_flags(table)
    _check_bounds(table, symmetry)
    _check_reductions(table)
    _check_overlaps(table)
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
    kinds = (queue.kind for queue in table.thread_queue_of)
    of_queue = np.array([places.index(kind) for kind in kinds], np.int64)
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


def _check_reductions(table: CommandTable) -> None:
    """Check that the core has every reduction, and that slices are whole elements."""
    for number, command in enumerate(table.commands):
        if not isinstance(command, Reduce):
            continue
        rows = np.flatnonzero(table.command == number)
        if not len(rows):
            continue
        try:
            item = reduction_item_bytes(command.dtype, command.op)
        except ValueError as error:
            raise ScheduleError(f"{table.where(int(rows[0]))}: {error}.") from error
        nbytes = table.access_nbytes[table.access_start[rows]]
        wrong = rows[nbytes % item != 0]
        if len(wrong):
            raise BoundsError(
                f"{table.where(int(wrong[0]))} reduces {nbytes[nbytes % item != 0][0]} bytes, "
                f"expected a multiple of {item} ({command.dtype})."
            )


def _check_overlaps(table: CommandTable) -> None:
    """Check that commands do not write over what they still read.

    A Copy may; a Reduce may write exactly one of its sources.
    """
    for number, command in enumerate(table.commands):
        if not isinstance(command, Broadcast | Swap | Reduce | Encode | Decode):
            continue
        rows = np.flatnonzero(table.command == number)
        if not len(rows):
            continue
        first, last = table.access_start[rows], table.access_start[rows + 1] - 1
        for step in range(1, int(last[0] - first[0]) + 1):
            one, other = (
                (first, first + step) if isinstance(command, Broadcast) else (last - step, last)
            )
            wrong = rows[_overlap(table, one, other, equal=isinstance(command, Reduce))]
            if len(wrong):
                raise ScheduleError(
                    f"{table.where(int(wrong[0]))} writes bytes that it still reads.",
                    "Use a source and a destination that do not overlap.",
                )


def _overlap(
    table: CommandTable, one: NDArray[np.int64], other: NDArray[np.int64], *, equal: bool
) -> NDArray[np.bool_]:
    """Return which accesses share bytes, except those that are ``equal`` if these are allowed."""
    columns = (table.access_rank, table.access_buffer)
    same = np.logical_and(*(column[one] == column[other] for column in columns))
    start, stop = table.access_offset, table.access_offset + table.access_nbytes
    shared: NDArray[np.bool_] = same & (start[one] < stop[other]) & (start[other] < stop[one])
    return shared & (start[one] != start[other]) if equal else shared


def _row_of(table: CommandTable, access: int) -> int:
    return int(np.searchsorted(table.access_start, access, side="right")) - 1


class Digit(NamedTuple):
    """Positions in a group, each a chunk of ``scale`` bytes."""

    group: Group
    scale: int

    @property
    def block(self) -> int:
        """The bytes of all positions together."""
        return self.group.size * self.scale


@dataclass(frozen=True, slots=True)
class _Use:
    """One stored access: its digits, what is added to them, and its length."""

    digits: tuple[Digit, ...]
    index: Index | None  # of the last digit
    added: tuple[
        tuple[int, int], ...
    ]  # the base and each loop: increment per iteration, and its maximum
    nbytes: int


def buffers_are_symmetric(flat: Schedule, symmetry: Symmetry) -> bool:
    """Return whether all ranks of a symmetry class access their buffers symmetrically."""
    uses: dict[str, list[_Use]] = {buffer.name: [] for buffer in flat.buffers}
    for command, counts in _stored(flat):
        for _, where in accesses(command):
            use = _use(where, counts, symmetry)
            if use is None or where.buffer not in uses:
                return False
            uses[where.buffer].append(use)
    return all(_fits(buffer, uses[buffer.name]) for buffer in flat.buffers)


def _stored(flat: Schedule) -> Iterator[tuple[Command, tuple[int, ...]]]:
    """Yield every stored command with the counts of its enclosing loops."""
    pending: list[tuple[Command | Repeat, tuple[int, ...]]] = [
        (c, ()) for p in flat.programs for queue in p.queues for c in queue.commands
    ]
    while pending:
        item, counts = pending.pop()
        if isinstance(item, Repeat):
            pending += [(c, (*counts, item.count)) for c in item.body]
            continue
        yield item, counts
        for body in bodies(item):
            pending += [(c, counts) for c in body]


def _use(where: Slice, counts: tuple[int, ...], symmetry: Symmetry) -> _Use | None:
    """Return an access in digits, or None if it has no such form."""
    offset = Rel(where.offset) if isinstance(where.offset, int) else where.offset
    length = where.nbytes if isinstance(where.nbytes, int) else where.nbytes.base
    # A length that depends on rank or iteration is not a whole chunk everywhere.
    if isinstance(where.nbytes, Rel) and (any(where.nbytes.steps) or where.nbytes.terms):
        return None
    terms = sorted((t for t in offset.terms if t.varies), key=lambda t: -t.scale)
    if any(t.table or t.scale < 0 or not commutes(t.index, symmetry) for t in terms):
        return None
    if any(t.index.masks for t in terms[:-1]):
        return None
    base = offset.base + sum(t.table[0] for t in offset.terms if t.table)  # all entries are equal
    digits = tuple(Digit(t.index.group, t.scale) for t in terms)
    loops = zip(offset.steps, counts, strict=False)
    added = ((base, base), *((step, step * max(0, count - 1)) for step, count in loops))
    if any(most < 0 for _, most in added):
        return None
    return _Use(digits, terms[-1].index if terms else None, added, length)


def _fits(buffer: Buffer, uses: list[_Use]) -> bool:
    used = [use for use in uses if use.nbytes]
    digits = max((use.digits for use in used), key=len, default=())
    if not digits:
        return isinstance(buffer.nbytes, int) or len(set(buffer.nbytes)) == 1
    if not isinstance(buffer.nbytes, int) or buffer.nbytes % digits[0].block:
        return False
    # Every chunk is divided evenly by the next digit, so no access reaches from one into another.
    nested = all(
        inner.block <= outer.scale and outer.scale % inner.block == 0
        for outer, inner in pairwise(digits)
    )
    return nested and all(_in_digits(use, digits) for use in used)


def _in_digits(use: _Use, digits: tuple[Digit, ...]) -> bool:
    """Return whether an access covers a chunk, whole sub-chunks, or part of a smallest chunk."""
    if use.digits != digits[: len(use.digits)]:
        return False
    block = digits[0].block
    inside = sum(
        most for each, most in use.added if each % block
    )  # the rest advances by whole blocks
    masks = use.index is not None and use.index.masks
    if len(use.digits) < len(digits):
        chunk = use.digits[-1].scale if use.digits else block
        whole = use.nbytes == chunk if use.digits else use.nbytes % chunk == 0
        return inside == 0 and whole and not masks
    scale = digits[-1].scale
    if not masks:
        return inside + use.nbytes <= scale
    # Several adjacent chunks, as in halving-doubling: a block of 2^k whose number the mask keeps.
    assert use.index is not None
    chunks, rest = divmod(use.nbytes, scale)
    power = chunks & (chunks - 1) == 0
    number = use.index.mask % use.index.group.size
    return inside == 0 and rest == 0 and power and number == use.index.group.size - chunks
