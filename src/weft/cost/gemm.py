"""A GEMM as a grid of tiles: which tiles, how long they take, what they move.

Each workgroup computes one tile of the result and walks along k in steps. Workgroups run on
units; units of one L2 slice work on a block of tiles and share the panels of both operands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, sqrt
from typing import TYPE_CHECKING

import numpy as np

from weft.cost.peak_rates import flops_of
from weft.hardware.dtypes import scheme_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.hardware import Device
    from weft.schedule import Cost

    Floats = NDArray[np.float64]

# A workgroup for each tile, dispatched as slots come free; persistent workgroups, one a unit, that
# loop over tiles dealt to them beforehand, or take the next one from a counter.
FAMILIES = ("gemm", "gemm-lists", "gemm-stealing")
LINE = 128  # bytes of a cache line: L2 of MI300X, H100 and A100 alike
STEP = 64  # bytes of a row that one step along k takes, twice buffered: half a cache line

# Sides of the tiles that libraries choose from (hipBLASLt and cuBLASLt have these and more). Those
# between 128 and 256 were recorded of hipBLASLt on MI300X (ROCm/tritonBLAS, overlap-analysis.md).
TILES = (
    *((256, 256), (512, 128), (256, 224), (256, 192), (256, 176), (256, 160), (256, 128)),
    *((128, 256), (128, 128), (128, 64), (64, 128), (64, 64)),
)
# A tile of m x n loads (m + n) for m n: what a step costs besides its products, in rows.
# 128 x 128 tiles then reach 85 % of what 256 x 256 do where nothing else holds them up, the ratio
# that CUTLASS reports between the two.
LOADING = 27.0
UNHIDDEN = 0.05  # of what loads take from the L2 does not hide behind multiplications: a prior


@dataclass(frozen=True, slots=True)
class Grid:
    """One GEMM cut into tiles for one device."""

    m: int
    n: int
    k: int
    item: int  # bytes of an element of the operands
    out_item: int  # bytes of an element of the result
    tile: tuple[int, int]
    tile_seconds: float  # on a unit of its own
    slots: int  # workgroups that fit on a unit
    pieces: int = 1  # in which each tile is handed out
    cluster: int = 1  # workgroups that share what they load of one operand
    dealt: int = 0  # persistent workgroups that got lists of tiles beforehand; 0: none

    @property
    def rows(self) -> int:
        """Tiles from top to bottom."""
        return -(-self.m // self.tile[0])

    @property
    def tiles(self) -> int:
        """How many workgroups there are."""
        return self.rows * -(-self.n // self.tile[1])

    @property
    def handed_out(self) -> tuple[int, float]:
        """How many pieces of work units take, and how long each is: tiles, parts or lists."""
        if self.dealt:
            lists = min(self.dealt, self.tiles)
            return lists, self.tile_seconds * ceil(self.tiles / lists)
        return self.tiles * self.pieces, self.tile_seconds / self.pieces

    def seconds(self, units: int) -> float:
        """Return the seconds of the units: they work in waves, the last may be nearly empty."""
        count, each = self.handed_out
        return ceil(count / units) * each

    def traffic(self, units: Floats, device: Device) -> Floats:
        """Return the bytes beyond the L2 on so many units, lines that are fetched again included.

        The units of an L2 slice work on a nearly square block of tiles and read its panels once.
        """
        together = np.maximum(1.0, self._in_flight(units, device))
        high = np.minimum(self.rows, np.sqrt(together))
        panels = high * self.tile[0] + together / high * self.tile[1]
        read = np.maximum(self.tiles / together * panels, self.m + self.n) * self.k
        again = refetched(self._crowding(together, device), device.kernels.l2_ways)
        return self.item * read * (1 + again) + self.out_item * self.m * self.n

    def _in_flight(self, units: Floats, device: Device) -> Floats:
        """Return how many workgroups run at once on the units of one L2 slice."""
        return np.minimum(self.tiles, units * self.slots) / device.kernels.l2_slices

    def _crowding(self, workgroups: Floats, device: Device) -> Floats:
        """Return live cache lines per way of a set: every row of both operands has one a step."""
        live = workgroups * sum(self.tile) * LINE * device.kernels.live_steps
        return live / (device.l2_bytes / device.kernels.l2_slices)

    def inner_traffic(self) -> float:
        """Return the bytes that the L2 gives to the units: every tile loads its own panels.

        The workgroups of a cluster lie along the shorter side and load the longer one once.
        """
        rows = min(self.tile) + max(self.tile) / self.cluster
        return self.tiles * rows * self.k * self.item

    def traffic_on(self, units: int, device: Device) -> float:
        """Return ``traffic`` for one number of units, without arrays: libraries try many tiles."""
        kernels = device.kernels
        tiles, (high, wide) = self.tiles, self.tile
        together = max(1.0, min(tiles, units * self.slots) / kernels.l2_slices)
        rows = min(self.rows, sqrt(together))
        panels = rows * high + together / rows * wide
        read = max(tiles / together * panels, self.m + self.n) * self.k
        live = together * (high + wide) * LINE * kernels.live_steps
        again = _refetched_once(live * kernels.l2_slices / device.l2_bytes, kernels.l2_ways)
        return self.item * read * (1 + again) + self.out_item * self.m * self.n

    def alone(self, units: int, device: Device) -> float:
        """Return the seconds on so many units alone, bound by the units, memory or the L2."""
        by_memory = self.traffic_on(units, device) / device.memory_rate
        by_cache = self.inner_traffic() / device.kernels.l2_rate
        return max(self.seconds(units), by_memory, by_cache)


def refetched(crowding: Floats, ways: int) -> Floats:
    """Return the share of lines that are fetched twice.

    Lines of all workgroups in flight fall into the sets of a cache as chance has it, so many in
    each as a Poisson distribution says. A line that finds its set full drives out one that is
    still to be used. So a cache seems to have room, and soon after has none: taking a few
    workgroups away then saves more traffic than its share.
    """
    shares = _overflows(ways)
    return np.interp(crowding * _POINTS, np.arange(len(shares)), shares)


def _refetched_once(crowding: float, ways: int) -> float:
    shares = _overflow_list(ways)
    place = min(crowding * _POINTS, len(shares) - 1.0)
    before = int(place)
    after = min(before + 1, len(shares) - 1)
    return shares[before] + (place - before) * (shares[after] - shares[before])


_POINTS = 1024  # of a table for each line a way


@lru_cache
def _overflow_list(ways: int) -> list[float]:
    shares: list[float] = _overflows(ways).tolist()
    return shares


@lru_cache
def _overflows(ways: int) -> Floats:
    """Return how likely a set overflows: it gets more lines than ways; by mean lines per way."""
    mean = np.arange(8 * _POINTS + 1) / _POINTS * ways
    term = np.exp(-mean)
    fits = term.copy()
    for number in range(1, ways):
        term = term * mean / number
        fits += term
    overflow: Floats = np.maximum(0.0, 1.0 - fits)
    return overflow


def is_gemm(cost: Cost) -> bool:
    """Return whether a kernel is priced as a grid of tiles: an empty product has none."""
    return cost.family in FAMILIES and len(cost.shape) == 3 and all(cost.shape)


@lru_cache(maxsize=4096)
def gemm_grid(
    shape: tuple[int, int, int], dtype: str, device: Device, family: str = "gemm"
) -> Grid:
    """Return the grid that a library chooses: what it expects to be the fastest on all units.

    Libraries rank tiles by the loads that their products have to hide, also where a device reaches
    its sustained rate with any of them. Persistent kernels are written for one tile, the largest.
    One with lists has a workgroup for each unit, and one that finds no unit free waits with all of
    its list.
    """
    fits = [tile for tile in TILES if _by_registers(tile, device)] or TILES[-1:]
    grids = [_grid(shape, dtype, tile, device) for tile in fits]

    if family == "gemm-lists":
        return replace(grids[0], dealt=device.units)
    if family == "gemm-stealing":
        return grids[0]

    sustained = flops_of(device, dtype).achieved / device.units * _loading(fits[0])

    def expected(grid: Grid) -> float:
        loads = grid.inner_traffic() / device.kernels.l2_rate
        ranked = 2.0 * grid.tile[0] * grid.tile[1] * grid.k * _loading(grid.tile) / sustained
        busy = grid.seconds(device.units) * max(1.0, ranked / grid.tile_seconds)
        by_memory = grid.traffic_on(device.units, device) / device.memory_rate
        return max(busy, by_memory, loads) + UNHIDDEN * loads

    return min(grids, key=expected)


def _loading(tile: tuple[int, int]) -> float:
    """Return the duration of a step, relative to its products alone."""
    return 1 + LOADING * (1 / tile[0] + 1 / tile[1])


def _grid(shape: tuple[int, int, int], dtype: str, tile: tuple[int, int], device: Device) -> Grid:
    """Build a grid: tiles at the sustained rate, or at what loads of a tile leave of the peak."""
    flops = flops_of(device, dtype)
    rate = min(flops.achieved, flops.rated / _loading(tile)) / device.units
    seconds = 2.0 * tile[0] * tile[1] * shape[2] / rate
    scheme, slots = scheme_of(dtype), _slots(tile, device)
    items = ceil(scheme.activation), ceil(scheme.output)
    kernels = device.kernels
    return Grid(*shape, *items, tile, seconds, slots, kernels.pieces, kernels.cluster)


def _slots(tile: tuple[int, int], device: Device) -> int:
    """Return the tiles that a unit holds: two buffers of a step each, and sums."""
    by_memory = device.kernels.local_bytes // (sum(tile) * STEP * 2)
    return max(1, min(by_memory, _by_registers(tile, device)))


def _by_registers(tile: tuple[int, int], device: Device) -> int:
    return device.kernels.register_bytes // (tile[0] * tile[1] * 4 * 2)
