"""What the ops of a step demand of a device while they run.

Every op has a duration when alone: fitted, recorded or computed. Its demands say what becomes of
that duration next to other ops. They are those of a *flow* whose size is chosen such that flows
share memory as their requests in flight do: a kernel keeps ``overcommit`` times the requests in
flight that fill the memory, a transfer of a collective as many as fill its link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.cost import gemm_grid, is_gemm
from weft.cost.bus import bus_factor
from weft.simulator import collective_units, unit_rate
from weft.simulator.grids import byte_weight

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.cost import Grid
    from weft.hardware import Device, Platform
    from weft.schedule import Cost
    from weft.step import Collective

    Floats = NDArray[np.float64]

# Kernels bound by memory need nearly all units to keep it busy: next to NCCL, which held a fifth
# of the units, they took 1.09 and 1.03 times as long in two recorded jobs on A100.
UNITS_FOR_MEMORY = 0.9
_ARITHMETIC = frozenset(
    ("gemm", "bmm", "convolution", "attention", "attention-backward", "decode", "moe")
)


class Flow(NamedTuple):
    """One op while it runs: ``size`` at ``cap`` a second at most, demands per unit of size."""

    size: float
    cap: float
    memory: float = 0.0  # bytes
    units: float = 0.0  # unit-seconds


class GridTiles(NamedTuple):
    """A product as whole tiles: how many, how long each takes, what they load from the L2."""

    grid: Grid
    tiles: float
    tile_seconds: float
    cache: float  # bytes of the L2 for each unit of the flow
    stretch: float  # of the grid, such that it takes what was fitted


class TransferResource(NamedTuple):
    """What moves the bytes of a collective: units that it holds, or copy engines."""

    held: int
    transfers: int  # each of which moves the flow
    demand: float  # bytes for each unit of the flow
    capacity: float
    by_engines: bool = False


@dataclass(frozen=True, slots=True)
class OpDemands:
    """What ops demand of one platform."""

    platform: Platform

    @property
    def device(self) -> Device:
        """What every rank is."""
        return self.platform.require_device()

    @property
    def transfer_rate(self) -> float:
        """The rate of one of the transfers that collectives are made of."""
        if not self.platform.levels:
            return self.device.memory_rate
        level = self.platform.levels[0]
        # Collectives of a node send to all peers at once, so each transfer has an equal part of
        # the port.
        return level.rate / max(1, level.size - 1)

    def is_product(self, cost: Cost | None) -> bool:
        """Return whether a kernel is a product that runs in waves of tiles."""
        return cost is not None and is_gemm(cost) and cost.dtype in self.device.flops

    def kernel(self, cost: Cost, seconds: float) -> tuple[Flow, GridTiles | None]:
        """Return the demands of a kernel that takes ``seconds`` alone."""
        device = self.device
        if self.is_product(cost):
            return self._product(cost, seconds)
        # The simulator shares max-min fairly: flows at a saturated resource run at equal rates. A
        # kernel's flow therefore gets a low rate and a high weight, so that at equal rates it has
        # `overcommit` times the share of one transfer, as its requests in flight do.
        rate = self.transfer_rate / device.kernels.overcommit
        size = seconds * rate
        # Counted bytes may exceed what memory can deliver in the given time, because caches serve
        # some of them: no kernel demands more than all of memory.
        memory = min(cost.nbytes / size, device.memory_rate / rate)
        # the nearer its arithmetic is to its traffic, the more units keep up with memory
        needed = UNITS_FOR_MEMORY
        if not is_memory_bound(cost, device):
            needed = 1.0
        elif cost.flops:
            needed = max(
                needed, _arithmetic_seconds(cost, device) * device.memory_rate / cost.nbytes
            )
        if cost.tiles > 1:  # as recorded: workgroups that do not fill the device leave units idle
            needed = min(needed, cost.tiles / device.units)
        return Flow(size, rate, memory, needed * device.units / rate), None

    def copy(self, cost: Cost, seconds: float) -> tuple[Flow, None]:
        """Return the demands of a copy by an engine: memory, and no units."""
        rate = self.transfer_rate
        size = seconds * rate
        return Flow(size, rate, min(cost.nbytes / size, self.device.memory_rate / rate)), None

    def _product(self, cost: Cost, seconds: float) -> tuple[Flow, GridTiles]:
        """Stretch all tiles of a product alike, such that it takes ``seconds`` alone."""
        device = self.device
        grid, alone, traffic = _grid(cost.shape, cost.dtype, device, cost.family)
        stretch = seconds / alone
        # The grid model says how a product reacts to fewer units and less memory, the fitted price
        # how long it takes: the grid is scaled to the price, in time and in traffic.
        weight = byte_weight(self.platform, device.units)
        size = stretch * traffic / weight
        tiles, tile_seconds = grid.handed_out
        cache = grid.inner_traffic() * stretch / size
        return Flow(size, 0.0, weight), GridTiles(
            grid, tiles, stretch * tile_seconds, cache, stretch
        )

    def traffic(self, cost: Cost) -> Floats:
        """Return the demand of memory of a product on 0, 1, 2 .. units, per unit of its flow."""
        units = self.device.units
        return _traffic(cost.shape, cost.dtype, self.device, cost.family) * byte_weight(
            self.platform, units
        )

    def collective(
        self,
        what: Collective,
        ranks: int,
        seconds: float,
        *,
        units: int | None = None,
        by_engines: bool = False,
        between_nodes: bool = False,
    ) -> tuple[Flow, TransferResource]:
        """Return the demands of a collective among ``ranks`` that takes ``seconds`` alone.

        It holds ``units``, by default as many as its library takes. Inside a node a rank sends to
        all others at once, between nodes to the next one of a ring.
        """
        device, kind = self.device, what.kind
        # A collective is one flow that stands for its `transfers`, which run at the same rate;
        # port and memory are charged for all of them.
        crossing = max(1.0, _crossing(kind, ranks) * what.nbytes)
        transfers = 1 if between_nodes else max(1, ranks - 1)
        size = crossing / transfers
        cap = size / seconds
        # A byte is read from memory by its sender and written by its receiver, and a rank is both.
        # A kernel also stages it in buffers of the library; engines copy from and to the tensors.
        passes = transfers * (2.0 if by_engines else 2.0 + device.kernels.staging)
        memory = min(passes, device.memory_rate / cap)
        # Units also copy the rank's own chunk, which crosses no link: n chunks for n - 1
        # transfers. `unit_rate` counts it too.
        demand = transfers * ranks / max(1, ranks - 1)
        if by_engines:
            dma = device.require_dma()
            capacity = min(transfers, dma.num_engines) * dma.engine_rate
            # Alone, the collective must take its price, also where that is faster than rated
            # engines.
            most = max(capacity, transfers * cap)
            held = units or 0
            moved_by = TransferResource(held, transfers, transfers, most, by_engines=True)
            return Flow(size, cap, memory), moved_by
        held = min(units or collective_units(self.platform, kind), device.units)
        capacity = held * unit_rate(self.platform, kind)
        moved_by = TransferResource(held, transfers, demand, max(capacity, demand * cap))
        return Flow(size, cap, memory), moved_by


def is_memory_bound(cost: Cost, device: Device) -> bool:
    """Return whether memory rather than arithmetic bounds a kernel."""
    if not cost.flops:  # a recorded product of unknown shape has tiles and no bytes
        return cost.family not in _ARITHMETIC and (cost.nbytes > 0 or cost.tiles == 1)
    return cost.nbytes / device.memory_rate > _arithmetic_seconds(cost, device)


def _arithmetic_seconds(cost: Cost, device: Device) -> float:
    known = device.flops.get(cost.dtype) or max(device.flops.values(), key=lambda r: r.achieved)
    return cost.flops / known.achieved


def _crossing(kind: str, ranks: int) -> float:
    """Return the bytes that leave the busiest rank for each byte of a collective."""
    if ranks < 2 or kind in ("send", "recv", "barrier"):
        return 1.0
    # The root of a broadcast or scatter sends to every other rank; bus_factor is that of the other
    # collectives (nccl-tests, PERFORMANCE.md).
    return ranks - 1.0 if kind in ("broadcast", "scatter") else bus_factor(kind, ranks)


@lru_cache(maxsize=4096)
def _traffic(shape: tuple[int, ...], dtype: str, device: Device, family: str) -> Floats:
    """Return the traffic of a product on 0, 1, 2 .. units, as a share of that on all of them."""
    grid, _, whole = _grid(shape, dtype, device, family)
    # Fewer units have fewer tiles in the caches at once, so the traffic of a product depends on
    # how many a collective leaves to it. Entry 0 is never read as zero units: it repeats 1.
    counts = np.maximum(1.0, np.arange(device.units + 1, dtype=np.float64))
    return grid.traffic(counts, device) / whole


@lru_cache(maxsize=4096)
def _grid(
    shape: tuple[int, ...], dtype: str, device: Device, family: str
) -> tuple[Grid, float, float]:
    """Return the grid of a product, its seconds alone on a whole device, and its traffic."""
    m, n, k = shape
    grid = gemm_grid((m, n, k), dtype, device, family)
    return grid, grid.alone(device.units, device), grid.traffic_on(device.units, device)
