"""What the links of the traced machine can do: how long a collective would take alone.

The device's name finds a machine of the catalogue; prices are those of the planner.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from weft.cost.bus import bus_factor
from weft.errors import WeftError
from weft.hardware import Platform, platform, platform_names
from weft.planner.prices import Prices, default_library
from weft.workload import Collective

_KINDS = {"send_recv": "send"}  # of a trace, as the planner names them


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

    A node matches where every word of its device's name is in the driver's; the most words win,
    then the shortest name.

    >>> links_of("NVIDIA A100-SXM4-80GB").name, links_of("AMD Instinct MI300X VF").name
    ('a100-8', 'mi300x-8')
    >>> links_of("NVIDIA A100-PCIE-40GB").name, links_of("NVIDIA H100 80GB HBM3").name
    ('a100-pcie-8', 'h100-8')
    >>> links_of("Tesla T4").name, links_of("NVIDIA A1000").name, links_of("Intel CPU").name
    ('t4-8', '', '')
    """
    words = {*re.split(r"[^a-z0-9]+", device.lower())}
    nodes = [name for name in platform_names() if name != "cpu" and _named_by(name) <= words]
    node = min(nodes, key=lambda name: (-len(_named_by(name)), len(name)), default="")
    return Links(_machine(node) if node else None)


def _named_by(node: str) -> set[str]:
    """Return the words of the device in the name of a node: h100-pcie-8 has an H100 PCIe."""
    return {*re.sub(r"-(\d{1,2}|nvl\d+)(-\w+)?$", "", node).split("-")}


@lru_cache
def _machine(node: str) -> Platform:
    """Read a machine of the catalogue once."""
    return platform(node)


@lru_cache(maxsize=4096)
def _seconds(machine: Platform, kind: str, nbytes: int, num_ranks: int, dtype: str) -> float | None:
    """Return the planner's price; None for what it has none for, as unknown kinds."""
    try:
        there = sized(machine, num_ranks)
        what = Collective(_KINDS.get(kind, kind), nbytes, dtype or "bf16")
        return _prices(there).collective(what, tuple(range(num_ranks)))
    except (WeftError, KeyError):
        return None


def sized(machine: Platform, num_ranks: int) -> Platform:
    """Return so many ranks of a machine, on several nodes where one has fewer."""
    if num_ranks <= machine.num_ranks:
        return machine.resized(num_ranks)
    return machine.cluster(-(-num_ranks // machine.node_size)).resized(num_ranks)


@lru_cache(maxsize=64)
def _prices(machine: Platform) -> Prices:
    return Prices(machine, default_library(machine))
