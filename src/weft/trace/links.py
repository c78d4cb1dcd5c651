"""What the links of the traced machine can do: how long a collective would take alone.

The device's name finds a machine of the catalogue. Inside a node a collective costs what the
library was measured to take there; elsewhere, its bytes at the rate of the slowest link they pass.
"""

from dataclasses import dataclass
from functools import lru_cache

from weft.cost.bus import bus_factor
from weft.cost.nccl import library_price
from weft.errors import WeftError
from weft.hardware import Platform, platform, platform_names

_LIBRARY_DTYPES = {"int8": "int8", "uint8": "int8"}


@dataclass(frozen=True, slots=True)
class Links:
    """The links of one machine, or of none that weft knows."""

    machine: Platform | None

    @property
    def name(self) -> str:
        """The machine's name in the catalogue."""
        return self.machine.name if self.machine else ""

    def seconds(
        self, kind: str, nbytes: int | None, num_ranks: int | None, dtype: str = ""
    ) -> float | None:
        """Estimate how long a collective takes once all ranks are there; None: cannot say."""
        if self.machine is None or nbytes is None or not num_ranks or num_ranks < 2:
            return None
        return _seconds(self.machine, kind, nbytes, num_ranks, dtype)


def bus_bandwidth(
    kind: str, nbytes: int | None, num_ranks: int | None, seconds: float | None
) -> float | None:
    """Give the bus bandwidth of a collective, as nccl-tests defines it."""
    if not nbytes or not num_ranks or not seconds or num_ranks < 2:
        return None
    return nbytes / seconds * bus_factor(kind, num_ranks)


def links_of(device: str) -> Links:
    """Find the machine of a device by the name its driver gives it.

    >>> links_of("NVIDIA A100-SXM4-80GB").name, links_of("AMD Instinct MI300X VF").name
    ('a100-8', 'mi300x-8')
    >>> links_of("Tesla T4").name
    ''
    """
    letters = device.lower().replace(" ", "").replace("-", "")
    nodes = [name for name in platform_names() if name.split("-")[0] in letters]
    node = max(nodes, key=len, default="")
    return Links(_machine(node) if node else None)


@lru_cache
def _machine(node: str) -> Platform:
    """Read a machine of the catalogue once."""
    return platform(node)


@lru_cache(maxsize=4096)
def _seconds(machine: Platform, kind: str, nbytes: int, num_ranks: int, dtype: str) -> float | None:
    try:
        if num_ranks <= machine.node_size:
            sized = machine.resized(num_ranks)
            asked = _LIBRARY_DTYPES.get(dtype, "float16")
            return library_price(sized, kind, nbytes, dtype=asked).seconds
    except WeftError:  # this library, collective or number of ranks was not measured
        pass
    return _by_rate(machine, kind, nbytes, num_ranks)


def _by_rate(machine: Platform, kind: str, nbytes: int, num_ranks: int) -> float | None:
    """Price by the slowest link alone: a bound from below."""
    if machine.device is None:
        return None
    rate = sum(level.rate for level in machine.levels[: machine.node_levels])
    latency = machine.levels[0].latency
    if num_ranks > machine.node_size:
        between = min(
            machine.levels[machine.node_levels :], key=lambda level: level.rate, default=machine.nic
        )
        if between is None:
            return None
        # a ring passes every NIC of a node once, so a node sends at the rate of all of them
        rate, latency = min(rate, between.rate * machine.node_size), between.latency
    return latency + nbytes * bus_factor(kind, num_ranks) / rate
