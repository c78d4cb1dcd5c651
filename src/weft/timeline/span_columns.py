"""The columns of spans, computed from a CommandTable and the times of its rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.schedule import WRITE, Command, CommandKind, CommandTable, Decode, Encode, Kernel, Scope

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def columns_of(
    table: CommandTable, start: Floats, end: Floats, joules: Floats | None
) -> dict[str, Any]:
    """Return the columns of the rows that ran: those whose start is not NaN."""
    start, end = _with_calls(table, start, end)
    thread = table.thread
    # The distinct names, and the index of each row's name.
    numbers: dict[str, int] = {}
    of_command = [numbers.setdefault(name_of(c), len(numbers)) for c in table.commands]
    names, name = tuple(numbers), np.asarray(of_command, np.int32)[table.command]
    rows = {
        "rank": table.thread_rank[thread],
        "queue": table.thread_queue[thread],
        "lane": table.thread_lane[thread],
        "id": table.id,
        "kind": _kinds(table),
        "name": name,
        "start": start,
        "end": end,
        "nbytes": _written(table),
        "joules": np.zeros(len(start)) if joules is None else np.asarray(joules, np.float64),
        "parent": table.parent.astype(np.int64),
        "flag": key(table.flag_rank, table.flag_index),
        "count": table.count,
        "target": key(table.target_rank, table.target_queue),
        "fed": table.fed,
    }
    return {"names": names, "queues": table.queues, **keep(rows, ~np.isnan(start))}


def keep(rows: dict[str, Any], chosen: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the chosen rows; a missing parent is replaced by its nearest chosen ancestor."""
    if chosen.all():
        return rows
    place = np.cumsum(chosen) - 1
    parent = rows["parent"]
    while (lost := (parent >= 0) & ~chosen[parent]).any():
        parent = np.where(lost, rows["parent"][parent], parent)
    parent = np.where(parent >= 0, place[parent], -1)
    return {**{name: column[chosen] for name, column in rows.items()}, "parent": parent[chosen]}


def key(high: NDArray[np.int32], low: NDArray[np.int32]) -> Ints:
    """Return one number per pair of numbers; -1 where the first is -1."""
    wide = high.astype(np.int64)
    return np.where(wide < 0, -1, wide << 32 | np.maximum(low, 0))


def _kinds(table: CommandTable) -> NDArray[Any]:
    """Return the kind of each row; a library's collective is a kernel that communicates."""
    library = [isinstance(c, Kernel) and c.cost.family == "library" for c in table.commands]
    moves = np.asarray(library, bool)[table.command]
    return np.where(moves, np.asarray(CommandKind.COPY, table.kind.dtype), table.kind)


def _written(table: CommandTable) -> Ints:
    wrote = np.where(table.access_mode & WRITE, table.access_nbytes, 0)
    total = np.zeros(len(wrote) + 1, np.int64)
    np.cumsum(wrote, out=total[1:])
    bounds = total[table.access_start]
    return bounds[1:] - bounds[:-1]


def name_of(command: Command) -> str:
    """Return the name of a command's span."""
    match command:
        case Kernel(op=op):
            return op
        case Scope(name=name):
            return name
        case Encode(codec=codec) | Decode(codec=codec):
            return f"{type(command).__name__} {codec}"
        case _:
            return type(command).__name__


def _with_calls(table: CommandTable, start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Return times in which each Call lasts from its first command to its last.

    The Wait by which a forked queue enters a call may have started long before, so the call begins
    where that Wait ends. Forks and joins are recognized by the fact that no Submit counts them.
    """
    if not (table.kind == CommandKind.CALL).any():
        return start, end
    begin = np.where((table.kind == CommandKind.WAIT) & (table.fed < 0), end, start)
    finish = np.array(end, np.float64)
    called = np.zeros(table.num_rows + 1, bool)  # one more, for parents of -1
    called[:-1] = table.kind == CommandKind.CALL
    begin[called[:-1]] = finish[called[:-1]] = np.nan
    inside = np.flatnonzero(called[table.parent])
    for rows in _deepest_first(table.parent, inside):
        np.fmin.at(begin, table.parent[rows], begin[rows])
        np.fmax.at(finish, table.parent[rows], finish[rows])
    return np.where(called[:-1], begin, start), finish


def _deepest_first(parent: NDArray[np.int32], rows: Ints) -> list[Ints]:
    depth = np.zeros(len(rows), np.int64)
    above = parent[rows]
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return [rows[depth == d] for d in range(int(depth.max(initial=0)), 0, -1)]
