"""A schedule priced once and let run many times, with other sizes in the same places.

A pair of a GEMM and a collective has some fifty rows whatever its sizes. Pricing them anew takes
a hundred times as long as letting them run, so whoever asks ten thousand times prices one and
changes what depends on the sizes: bytes, tiles, units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import _core
from weft.schedule import Kernel, Launch, write_out
from weft.simulator.demands import Resource, resource_kind, resource_owner
from weft.simulator.flows import unit_rate
from weft.simulator.grids import byte_weight, traffic_weights
from weft.simulator.pricing import price
from weft.simulator.rows import Rows
from weft.simulator.symmetry import platform_symmetry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.cost import Grid
    from weft.hardware import Platform
    from weft.schedule import Schedule

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prepared:
    """The priced rows of one schedule, of which at most one kernel and one launch vary."""

    platform: Platform
    rows: Rows
    columns: dict[str, Any]
    num_flags: int

    @classmethod
    def of(cls, schedule: Schedule, platform: Platform) -> Prepared:
        """Price ``schedule``; its sizes are those that ``seconds`` scales."""
        symmetry = platform_symmetry(schedule, platform, collapse=True)
        table = write_out(schedule, symmetry.representatives())
        priced = price(table, platform, symmetry)
        rows = Rows.of(table, platform, symmetry)
        return cls(platform, rows, priced.columns, priced.num_flags)

    def seconds(
        self,
        scale: float = 1.0,
        *,
        grid: Grid | None = None,
        grid_units: int = 0,
        units: int | None = None,
    ) -> float:
        """The makespan with ``scale`` times the bytes, another GEMM, other units of the launch."""
        changed = dict(self.columns)
        self._resize(changed, scale)
        if units is not None:
            self._relaunch(changed, units)
        if grid is not None:
            self._regrid(changed, grid, grid_units)
        start = np.empty(len(changed["size"]))
        end = np.empty(len(start))
        _core.simulate(changed, self.num_flags, 0.0, start, end)
        return float(end.max())

    @cached_property
    def _moves(self) -> Ints:
        return np.flatnonzero(self.rows.moves)

    @cached_property
    def _engines(self) -> Ints:
        return np.flatnonzero(self.rows.by_engine)

    def _resize(self, changed: dict[str, Any], scale: float) -> None:
        size, before = changed["size"].copy(), changed["before"]
        size[self._moves] *= scale
        if len(self._engines):
            before = before.copy()
            dma, mine = self.rows.dma(), self._engines
            old, new = (np.ceil(each[mine] / dma.packet_bytes) for each in (changed["size"], size))
            before[mine] += dma.start * (np.maximum(new, 1) - np.maximum(old, 1))
        changed |= {"size": size, "before": before}

    @cached_property
    def _launch(self) -> tuple[Ints, Ints, float]:
        """The rows of the collective's launch, its capacities, and what a unit moves."""
        found = [(c, mine) for c, _, mine in self.rows.of_kind(Launch) if c.family]
        keys = self.columns["key"]
        mine = np.concatenate([mine for _, mine in found])
        ours = np.isin(resource_owner(keys), mine) & (resource_kind(keys) == Resource.LAUNCH)
        return mine, np.flatnonzero(ours), unit_rate(self.platform, found[0][0].family)

    def _relaunch(self, changed: dict[str, Any], units: int) -> None:
        rows, capacities, rate = self._launch
        taken, capacity = changed["units"].copy(), changed["capacity"].copy()
        taken[rows] = units
        capacity[capacities] = units * rate
        changed |= {"units": taken, "capacity": capacity}

    @cached_property
    def _gemm(self) -> tuple[int, dict[Resource, int]]:
        """The row of the GEMM and its demands by what they are of."""
        row = next(int(mine[0]) for c, _, mine in self.rows.of_kind(Kernel))
        start, stop = self.columns["demand_start"][row : row + 2]
        kinds = resource_kind(self.columns["key"][self.columns["demand_resource"][start:stop]])
        edges = {Resource(kind): int(start) + n for n, kind in enumerate(kinds.tolist())}
        return row, edges

    def _regrid(self, changed: dict[str, Any], grid: Grid, units: int) -> None:
        row, edges = self._gemm
        weight = byte_weight(self.platform, units)
        table = _table(grid, units, self.platform)
        size = float(table[-1]) / weight
        weights = changed["demand_weight"].copy()
        weights[edges[Resource.MEMORY]] = weight
        weights[edges[Resource.UNITS]] = grid.tiles * grid.tile_seconds / size
        weights[edges[Resource.CACHE]] = grid.inner_traffic() / size
        changed["size"][row] = size
        changed |= {
            "demand_weight": weights,
            "grid_tiles": np.array([grid.tiles * grid.pieces], np.float64),
            "grid_tile_seconds": np.array([grid.tile_seconds / grid.pieces]),
            "grid_units": np.array([units], np.int32),
            "grid_slots": np.array([grid.slots], np.int32),
            "grid_traffic_start": np.array([0, units + 1], np.int64),
            "grid_traffic": table / size,
        }


def _table(grid: Grid, units: int, platform: Platform) -> Floats:
    return traffic_weights(grid, units, platform, 1.0)
