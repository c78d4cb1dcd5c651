"""The two sides of a pair as a rule sees them: seconds and rates from static sizes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from weft.collectives.catalogue import REDUCING
from weft.cost.bus import bus_factor
from weft.hardware.topology import exchange_rate
from weft.simulator import collective_units, unit_rate

if TYPE_CHECKING:
    from weft.cost import Grid
    from weft.hardware import Device, Platform


@dataclass(frozen=True, slots=True)
class GemmSide:
    """The GEMM on so many units: seconds alone, and what it asks of memory and of the L2."""

    seconds: float
    traffic: float
    inner: float
    tiles: int

    @property
    def memory_rate(self) -> float:
        """Bytes a second that it asks of memory."""
        return self.traffic / self.seconds

    @property
    def inner_rate(self) -> float:
        """Bytes a second that it asks of the L2."""
        return self.inner / self.seconds

    @classmethod
    def of(cls, grid: Grid, units: int, device: Device) -> GemmSide:
        """Look at a grid on so many units."""
        seconds, traffic = grid.alone(units, device), grid.traffic_on(units, device)
        return cls(seconds, traffic, grid.inner_traffic(), grid.tiles)


class Fixed(NamedTuple):
    """What does not depend on rates: a first launch, and before and after the bytes."""

    launch: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class CommSide:
    """A collective on one platform, by units or by engines."""

    platform: Platform
    by_engines: bool
    crossing: float  # bytes that leave the busiest rank, for each byte of the collective
    link_rate: float  # of all links of a rank
    mover_rate: float  # of what crosses links: by one unit, or by all engines
    filled: int  # the most units it uses
    peers: int
    in_turn: int  # transfers of the busiest engine
    passes: float  # through memory, of each byte that crosses
    adds: float  # bytes that are added up, for each byte of the collective
    adding_rate: float  # of memory, for such a byte
    before_sums: float  # the part of its time that has passed before it adds up

    def units(self, masked: int | None) -> int:
        """The units that it uses: a wider mask does not give it more workgroups."""
        return min(self.filled, masked) if masked else self.filled

    def rate(self, units: int, memory_load: float, cache_load: float) -> float:
        """Bytes a second over all links while computation loads memory and the L2."""
        stretch = self.platform.require_device().kernels.load_latency
        if self.by_engines:
            return min(self.link_rate, self.mover_rate / (1 + stretch * memory_load))
        moved = units * self.mover_rate / (1 + stretch * (memory_load + cache_load))
        return min(self.link_rate, moved)

    def seconds(self, nbytes: float, units: int) -> float:
        """Seconds alone."""
        moved = nbytes * self.crossing / self.rate(units, 0.0, 0.0)
        if not self.adds:
            return moved
        by_units = (self.filled if self.by_engines else units) * self._unit_rate()
        return moved + nbytes * self.adds / min(by_units, self.adding_rate)

    def _unit_rate(self) -> float:
        own = (self.peers + 1) / self.peers
        device = self.platform.require_device()
        return device.unit_copy_rate if self.by_engines else self.mover_rate * own

    def fixed(self, nbytes: float) -> Fixed:
        """Launches, the feeding of engines, and the way of a signal."""
        device = self.platform.require_device()
        latency = sum(level.latency for level in self.platform.levels)  # of the longest way
        launch = device.host_launch + device.launch
        if not self.by_engines:
            return Fixed(launch, device.host_launch, 2 * (latency + device.signal))
        dma = device.require_dma()
        packets = max(1, ceil(nbytes * self.crossing / self.peers / dma.packet_bytes))
        starts = dma.start * packets * self.in_turn
        before = self.peers * (dma.doorbell + dma.control) + dma.fetch + starts
        after = dma.drain + dma.sync + latency
        return Fixed(launch, before, after + (launch + dma.sync if self.adds else 0.0))


def comm_side(kind: str, platform: Platform, by_engines: bool) -> CommSide:  # noqa: FBT001
    """What the platform says about a collective."""
    device, n = platform.require_device(), platform.num_ranks
    peers = max(1, n - 1)
    own = n / peers  # with its own chunk, which no link sees
    if by_engines:
        dma = device.require_dma()
        # Transfers take turns on engines where those are fewer; the busiest engine decides. An
        # all-to-all has one more, of what stays.
        in_turn = ceil((peers + (kind == "all_to_all")) / dma.num_engines)
        mover = peers / in_turn * dma.engine_rate
        filled, passes = collective_units(platform), 2.0
    else:
        in_turn, mover = 1, unit_rate(platform, kind) / own
        filled, passes = collective_units(platform, kind), 2.0 + device.kernels.staging
    return CommSide(
        platform,
        by_engines,
        crossing=n - 1.0 if kind == "broadcast" else bus_factor(kind, n),
        link_rate=exchange_rate(platform.levels),
        mover_rate=mover,
        filled=filled,
        peers=peers,
        in_turn=in_turn,
        passes=passes,
        adds=1 / n if kind in REDUCING else 0.0,
        adding_rate=device.memory_rate / (n + 1),
        before_sums=0.5 if kind == "all_reduce" else 1.0,
    )
