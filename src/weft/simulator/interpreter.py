"""simulate: a Schedule on a Platform gives a Timeline."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import _core
from weft.errors import DeadlockError, UsageError
from weft.hardware import Platform
from weft.hardware import platform as find_platform
from weft.schedule import CommandKind, CommandTable, Schedule, expand
from weft.simulator.resource_demands import LINKS, Resource, resource_kind
from weft.simulator.row_pricing import PricedRows, price
from weft.simulator.rows import platform_symmetry
from weft.timeline import Timeline

Floats = NDArray[np.float64]


def simulate(
    schedule: Schedule,
    platform: Platform | str | Path,
    *,
    tolerance: float = 0.0,
    collapse: bool = True,
) -> Timeline:
    """Simulate ``schedule`` on ``platform``, which may be given by name, command by command.

    Ranks that do the same are simulated once (``collapse``). With a ``tolerance`` transfers
    that end within that part of the time since the last one began share one new solution of
    the rates, which is much faster where tens of thousands of them are in flight at once.
    """
    if not isinstance(platform, Platform):
        platform = find_platform(platform)
    if schedule.num_ranks != platform.num_ranks:
        if schedule.num_ranks > platform.num_ranks:
            raise UsageError(
                f"{schedule.name} has {schedule.num_ranks} ranks, {platform.name} only "
                f"{platform.num_ranks}.",
                "Choose a larger platform or build the schedule for fewer ranks.",
            )
        platform = platform.resized(schedule.num_ranks)
    symmetry = platform_symmetry(schedule, platform, collapse=collapse)
    table = expand(schedule, symmetry.representatives())
    priced = price(table, platform, symmetry)
    start = np.full(table.num_rows, np.nan)
    end = np.full(table.num_rows, np.nan)
    _core.simulate(priced.columns, priced.num_flags, tolerance, start, end)
    check_ended(table, end)
    # Prelaunched submissions are laid end to end, the last of a thread ending at zero.
    rows = np.flatnonzero(priced.held)
    for thread in np.unique(table.thread[rows]):
        mine = rows[table.thread[rows] == thread]
        left = np.cumsum(priced.held_cost[mine][::-1])[::-1]
        start[mine] = -left
        end[mine] = -left + priced.held_cost[mine]
    represents = np.full(len(table.ranks), symmetry.represents)
    return Timeline.from_table(
        table,
        start,
        end,
        basis="predicted",
        platform=platform.name,
        joules=_joules(table, priced, platform, end - start),
        represents=represents,
        origin=0.0,
    )


def check_ended(table: CommandTable, end: Floats) -> None:
    """Raise if a row did not end."""
    stuck = np.flatnonzero(np.isnan(end))
    if not len(stuck):
        return
    first = [table.where(int(row)) for row in _heads(table, stuck)[:4].tolist()]
    raise DeadlockError(
        f"{len(stuck)} commands can never start or end: {'; '.join(first)}.",
        "Every Wait needs that many Signals of its flag that do not themselves wait on it.",
    )


def _heads(table: CommandTable, stuck: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first stuck command of each thread, waits before the rest."""
    _, first = np.unique(table.thread[stuck], return_index=True)
    heads = stuck[first]
    return heads[np.argsort(table.kind[heads] != CommandKind.WAIT, kind="stable")]


def _joules(table: CommandTable, priced: PricedRows, platform: Platform, seconds: Floats) -> Floats:
    """Return the energy above idle: traffic by the byte, engines and units by the second."""
    joules = np.zeros(table.num_rows)
    device = platform.device
    if device is None:
        return joules
    columns: dict[str, Any] = priced.columns
    kind = resource_kind(columns["key"])
    power = device.power
    each = np.zeros(len(kind))
    each[kind == Resource.MEMORY] = power.memory_byte
    each[np.isin(kind, LINKS)] = power.link_byte
    each[np.isin(kind, (Resource.UNITS, Resource.WORK))] = power.unit
    row = np.repeat(np.arange(table.num_rows), np.diff(columns["demand_start"]))
    energy = each[columns["demand_resource"]] * columns["demand_weight"] * columns["size"][row]
    np.add.at(joules, row, energy)
    engines = kind[columns["demand_resource"]] == Resource.ENGINE
    joules[row[engines]] += power.engine * seconds[row[engines]]
    joules += columns["units"] * power.unit * seconds
    return joules
