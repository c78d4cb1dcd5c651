"""Kernels that are grids of tiles: what they demand, and what their load does to others."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.cost import Grid, gemm_grid, is_gemm
from weft.hardware import Device, Platform
from weft.schedule import Kernel
from weft.simulator.resource_demands import (
    LINKS,
    Demands,
    Resource,
    key,
    resource_kind,
    resource_owner,
)
from weft.simulator.rows import Rows, masked_units

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


# WORK only carries unit-seconds to the native core, which hands out whole tiles.
_NO_LIMIT = 1e300


def grids_of(rows: Rows) -> Iterator[tuple[Grid, int, Kernel, Ints]]:
    """Yield each bare GEMM: its grid, the units its queue may use, the command and its rows."""
    if rows.device is None:
        return
    for kernel, queue, mine in rows.kernels():
        if is_gemm(kernel.cost) and not rows.in_lane[mine[0]]:
            m, n, k = kernel.cost.shape
            grid = gemm_grid((m, n, k), kernel.cost.dtype, rows.device, kernel.cost.family)
            yield grid, masked_units(queue, rows.device), kernel, mine


def grid_sizes(rows: Rows, size: Floats) -> None:
    """Set the flow of each GEMM to its traffic, in bytes as heavy as a copy's."""
    for grid, units, _, mine in grids_of(rows):
        traffic = grid.traffic_on(units, rows.platform.require_device())
        size[mine] = traffic / byte_weight(rows.platform, units)


def byte_weight(platform: Platform, units: int) -> float:
    """Return the bytes in flight of a GEMM for each one of a collective's transfers.

    Memory serves requests as they come, so a kernel with more of them in flight gets more of it.
    A transfer has as many as fill its link, a GEMM ``overcommit`` times what fills the memory.
    Rates are shared evenly between flows, so its flow is counted in pieces of that weight.
    """
    device = platform.require_device()
    if not platform.levels:
        return 1.0  # one device alone: there are no transfers
    level = platform.levels[0]
    transfer = level.rate / max(1, level.size - 1)
    share = device.kernels.overcommit * units / device.units
    return max(1.0, share * device.memory_rate / transfer)


def add_grids(demands: Demands, rows: Rows, size: Floats, cap: Floats) -> None:
    """Add memory, the L2 and unit-seconds, each by the piece that flows.

    Units are no resource to be shared here: the native core counts whole tiles.
    """
    for grid, units, _, mine in grids_of(rows):
        device, rank = rows.platform.require_device(), rows.rank[mine]
        weight = byte_weight(rows.platform, units)
        work = grid.tiles * grid.tile_seconds / size[mine[0]]
        inner = grid.inner_traffic() / size[mine[0]]
        demands.add(mine, key(Resource.MEMORY, rank), weight, device.memory_rate)
        demands.add(mine, key(Resource.WORK, rank), work, _NO_LIMIT)
        demands.add(mine, key(Resource.CACHE, rank), inner, device.kernels.l2_rate)
        cap[mine] = 0.0  # the native core sets it from the units that there are


def grid_columns(rows: Rows, size: Floats, columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of grids for the native core; empty where there is none."""
    found = list(grids_of(rows))
    if not found:
        return {}
    device = rows.platform.require_device()
    each: list[tuple[Any, ...]] = []
    row_grid = np.full(rows.table.num_rows, -1, np.int32)
    tables: list[Floats] = []
    for grid, units, _, mine in found:
        table = traffic_weights(grid, units, rows.platform, float(size[mine[0]]))
        for row in mine.tolist():
            row_grid[row] = len(each)
            start, stop = columns["demand_start"][row], columns["demand_start"][row + 1]
            kinds = resource_kind(columns["key"][columns["demand_resource"][start:stop]])
            edge = int(start + np.flatnonzero(kinds == Resource.MEMORY)[0])
            each.append((*grid.handed_out, units, grid.slots, edge))
            tables.append(table)
    tiles, seconds, units_, slots, edges = zip(*each, strict=True)
    starts = np.concatenate(([0], np.cumsum([len(table) for table in tables])))
    return {
        "row_grid": row_grid,
        "grid_tiles": np.array(tiles, np.float64),
        "grid_tile_seconds": np.array(seconds, np.float64),
        "grid_units": np.array(units_, np.int32),
        "grid_slots": np.array(slots, np.int32),
        "grid_edge": np.array(edges, np.int32),
        "grid_traffic_start": starts.astype(np.int64),
        "grid_traffic": np.concatenate(tables),
        **_loads(rows, device, columns["key"]),
        **_clocks(rows, device, columns["key"]),
    }


def traffic_weights(grid: Grid, units: int, platform: Platform, size: float) -> Floats:
    """Return the demand of memory on 0, 1, 2 .. units, by the piece."""
    # A table by number of units, because a collective that starts or ends changes it in the run.
    counts = np.maximum(1.0, np.arange(units + 1, dtype=np.float64))
    return grid.traffic(counts, platform.require_device()) / size


def _loads(rows: Rows, device: Device, keys: Ints) -> dict[str, Any]:
    """Return whose load slows which resource: units use the L2, engines memory alone."""
    numbers = {k: number for number, k in enumerate(keys.tolist())}
    kind = resource_kind(keys)
    owner = resource_owner(keys)
    launches = kind == Resource.LAUNCH
    rank = np.where(launches, rows.rank[np.where(launches, owner, 0)], owner)
    rank = rows.symmetry.representative(rank)
    moved = launches | (kind == Resource.ENGINE)
    memory, cache = (key(which, rank) for which in (Resource.MEMORY, Resource.CACHE))
    first = [
        numbers.get(k, -1) if is_moved else -1 for k, is_moved in zip(memory, moved, strict=True)
    ]
    second = [
        numbers.get(k, -1) if is_moved else -1 for k, is_moved in zip(cache, launches, strict=True)
    ]
    return {
        "slowed_first": np.array(first, np.int32),
        "slowed_second": np.array(second, np.int32),
        "load_stretch": device.kernels.load_latency,
        "dispatch_share": device.kernels.dispatch_share,
    }


def _clocks(rows: Rows, device: Device, keys: Ints) -> dict[str, Any]:
    """Return the watts that traffic takes from computation: links pay for both directions."""
    kind, owner = resource_kind(keys), rows.symmetry.representative(resource_owner(keys))
    power, links = device.power, np.isin(kind, LINKS)
    # Flows count one direction; a rank of a collective receives as much as it sends.
    joules = np.where(links, 2 * power.link_byte, 0.0)
    joules[kind == Resource.MEMORY] = power.memory_byte
    pool = np.minimum(np.searchsorted(rows.ranks, owner), len(rows.ranks) - 1)
    # Ranks without commands have no pool that could lose clock.
    paid = (joules > 0) & (rows.ranks[pool] == owner)
    return {
        "clock_joules": device.kernels.clock_coupling * joules,
        "clock_pool": np.where(paid, pool, -1).astype(np.int32),
        "clock_watts": power.unit,
        "clock_held": device.kernels.held_watts,
    }
