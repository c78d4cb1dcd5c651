"""A schedule priced once and let run many times, with other sizes in the same places.

A pair of a GEMM and a collective has some fifty rows whatever its sizes. Pricing them anew takes
a hundred times as long as letting them run, so a caller that asks ten thousand times prices one and
changes what depends on the sizes: bytes, tiles, units.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft import _core
from weft.cost import Grid
from weft.hardware import Platform
from weft.schedule import CommandKind, Launch, Schedule, expand
from weft.simulator.flows import unit_rate
from weft.simulator.grids import byte_weight
from weft.simulator.resource_demands import Resource, resource_kind, resource_owner
from weft.simulator.row_pricing import price
from weft.simulator.rows import Rows, platform_symmetry

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Prepared:
    """The priced rows of one schedule, of which at most one kernel and one launch vary.

    What varies is written into columns of its own in place, so one thread at a time may ask.
    """

    def __init__(self, schedule: Schedule, platform: Platform) -> None:
        symmetry = platform_symmetry(schedule, platform, collapse=True)
        table = expand(schedule, symmetry.representatives())
        priced = price(table, platform, symmetry)
        self._platform, self._device = platform, platform.require_device()
        own = {name: priced.columns[name].copy() for name in ("size", "before")}
        self._columns = priced.columns | own
        rows = Rows.of(table, platform, symmetry)
        self._moves = np.flatnonzero(rows.moves)
        self._base = self._columns["size"][self._moves]
        self._engines = np.flatnonzero(rows.by_engine)
        # What engines do before a copy apart from starting its packets does not depend on sizes.
        self._asked = priced.columns["before"][self._engines] - self._starting()
        self._launches = np.flatnonzero(table.kind == CommandKind.LAUNCH)
        self._launch = self._find_launch(rows)
        self._gemm = self._find_gemm(rows)
        self._priced = _core.Priced(self._columns, priced.num_flags)

    def seconds(
        self,
        scale: float = 1.0,
        *,
        grid: Grid | None = None,
        grid_units: int = 0,
        traffic: Callable[[int], float] | None = None,
        units: int | None = None,
    ) -> float:
        """Return the makespan with ``scale`` times the bytes, another GEMM, or other launch units.

        ``traffic`` gives the GEMM's bytes on so many units, where the caller has them at hand.
        """
        columns = self._columns
        size = self._base * scale
        columns["size"][self._moves] = size
        columns["before"][self._engines] = self._asked + self._starting()
        if units is not None:
            assert self._launch is not None
            rows, capacities, rate = self._launch
            self._columns["units"][rows] = units
            self._columns["capacity"][capacities] = units * rate
        if grid is not None:
            self._regrid(grid, grid_units, traffic or partial(grid.traffic_on, device=self._device))
        return self._priced.makespan()

    def _starting(self) -> Floats:
        """Return what engines need to start the packets of each of their rows."""
        if not len(self._engines):
            return np.empty(0)
        dma = self._device.require_dma()
        packets = np.ceil(self._columns["size"][self._engines] / dma.packet_bytes)
        starts: Floats = dma.start * np.maximum(packets, 1)
        return starts

    def _find_launch(self, rows: Rows) -> _Launch | None:
        """Find the rows of the collective's launch, its capacities, and the rate of a unit."""
        found = [(c.family, mine) for c, _, mine in rows.of_kind(Launch) if c.family]
        if not found:
            return None
        keys = self._columns["key"]
        mine = np.concatenate([mine for _, mine in found])
        ours = np.isin(resource_owner(keys), mine) & (resource_kind(keys) == Resource.LAUNCH)
        return _Launch(mine, np.flatnonzero(ours), unit_rate(self._platform, found[0][0]))

    def _find_gemm(self, rows: Rows) -> _Gemm | None:
        """Find the rows of the GEMM and their demands; its traffic gets room for all units."""
        found = [mine for _, _, mine in rows.kernels()]
        if not found:
            return None
        columns, mine = self._columns, np.sort(np.concatenate(found))
        edge = np.concatenate([np.arange(*columns["demand_start"][row : row + 2]) for row in mine])
        kinds = resource_kind(columns["key"][columns["demand_resource"][edge]])
        memory, work, cache = (edge[kinds == kind] for kind in _DEMANDED)
        table = np.ones((len(mine), self._device.units + 1))
        starts = columns["grid_traffic_start"]
        for index, number in enumerate(columns["row_grid"][mine].tolist()):
            known = columns["grid_traffic"][starts[number] : starts[number + 1]]
            table[index, : len(known)] = known
        columns["grid_traffic"] = table.reshape(-1)
        columns["grid_traffic_start"] = np.arange(len(mine) + 1) * table.shape[1]
        return _Gemm(mine, memory, work, cache, table)

    def _regrid(self, grid: Grid, units: int, traffic: Callable[[int], float]) -> None:
        assert self._gemm is not None
        columns, (rows, memory, work, cache, table) = self._columns, self._gemm
        weight = byte_weight(self._platform, units)
        size = traffic(units) / weight
        tiles, tile_seconds = grid.handed_out
        columns["size"][rows] = size
        weights = columns["demand_weight"]
        weights[memory] = weight
        weights[work] = tiles * tile_seconds / size
        weights[cache] = grid.inner_traffic() / size
        columns["grid_tiles"][:] = tiles
        columns["grid_tile_seconds"][:] = tile_seconds
        columns["grid_units"][:] = units
        columns["grid_slots"][:] = grid.slots
        # Only these numbers of units can occur in the run: filling in all 300 would take longer
        # than it.
        for held in {0, *columns["units"][self._launches].tolist()}:  # what launches may take
            left = min(units, self._device.units - held)
            table[:, left] = traffic(max(1, left)) / size


_DEMANDED = (Resource.MEMORY, Resource.WORK, Resource.CACHE)


class _Launch(NamedTuple):
    rows: Ints
    capacities: Ints
    unit_rate: float


class _Gemm(NamedTuple):
    rows: Ints
    memory: Ints  # demands, one a row
    work: Ints
    cache: Ints
    traffic: Floats  # by row and units
