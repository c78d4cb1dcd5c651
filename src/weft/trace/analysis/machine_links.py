"""Estimates how long a collective would take alone on the links of the traced machine.

The device's name identifies a machine of the catalogue; prices are those of the planner.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from weft.cost.bus import bus_factor
from weft.errors import UsageError, WeftError
from weft.hardware import Platform, platform, platform_names
from weft.planner.prices import Prices, default_library
from weft.step import Collective

_KINDS = {"send_recv": "send"}  # kinds in a trace, by their names in the planner


@dataclass(frozen=True, slots=True)
class MachineLinks:
    """The links of one machine, or of none if weft does not know it."""

    machine: Platform | None

    @property
    def name(self) -> str:
        """The machine's name in the catalogue."""
        return self.machine.name if self.machine else ""

    def seconds(
        self,
        kind: str,
        nbytes: int | None,
        num_ranks: int | None,
        dtype: str = "",
        ranks: tuple[int, ...] = (),
    ) -> float | None:
        """Return the estimated duration of a collective once all ranks have arrived, or None.

        Where the ``ranks`` of the group are known, they are placed node by node; otherwise the
        group is on as few nodes as hold it.
        """
        if self.machine is None or nbytes is None or not num_ranks or num_ranks < 2:
            return None
        known = ranks if len(ranks) == num_ranks else ()
        return _seconds(self.machine, kind, nbytes, num_ranks, dtype, known)


def bus_bandwidth(
    kind: str, nbytes: int | None, num_ranks: int | None, seconds: float | None
) -> float | None:
    """Return the bus bandwidth of a collective, as nccl-tests defines it."""
    if not nbytes or not num_ranks or not seconds or num_ranks < 2:
        return None
    return nbytes / seconds * bus_factor(kind, num_ranks)


def links_of(device: str) -> MachineLinks:
    """Find the machine of a device by the name its driver reports.

    A node matches if every word of its device's name is in the driver's; the most words win, then
    the shortest name.
    """
    words = {*re.split(r"[^a-z0-9]+", device.lower())}
    nodes = [name for name in platform_names() if name != "cpu" and _named_by(name) <= words]
    node = min(nodes, key=lambda name: (-len(_named_by(name)), len(name)), default="")
    return MachineLinks(_machine(node) if node else None)


def device_of(node: str) -> str:
    """Return the device of a node of the catalogue, for traces that name none."""
    name = platform(node).name
    if not links_of(" ".join(_named_by(name))).machine:
        raise UsageError(
            f"--on: {node} is not a node of the catalogue (expected a name such as h100-8)",
            "List them with weft platforms.",
        )
    return " ".join(sorted(_named_by(name)))


def _named_by(node: str) -> set[str]:
    """Return the words of the device in the name of a node: h100-pcie-8 has an H100 PCIe."""
    return {*re.sub(r"-(\d{1,2}|nvl\d+)(-\w+)?$", "", node).split("-")}


@lru_cache
def _machine(node: str) -> Platform:
    """Return a machine of the catalogue, read once."""
    return platform(node)


@lru_cache(maxsize=4096)
def _seconds(
    machine: Platform, kind: str, nbytes: int, num_ranks: int, dtype: str, ranks: tuple[int, ...]
) -> float | None:
    """Return the planner's price, or None if it has none, as for unknown kinds."""
    try:
        there, members = _placed(machine, num_ranks, ranks)
        what = Collective(_KINDS.get(kind, kind), nbytes, dtype or "bf16")
        return _prices(there).collective(what, members)
    except (WeftError, KeyError):
        return None


def _placed(
    machine: Platform, num_ranks: int, ranks: tuple[int, ...]
) -> tuple[Platform, tuple[int, ...]]:
    """Return a machine for a group, and its ranks there."""
    size = machine.node_size
    nodes = sorted({rank // size for rank in ranks})
    if len(nodes) < 2 or machine.num_nodes > 1:
        return sized(machine, num_ranks), tuple(range(num_ranks))
    place = {node: number for number, node in enumerate(nodes)}
    members = tuple(place[rank // size] * size + rank % size for rank in ranks)
    return machine.cluster(len(nodes)), members


def sized(machine: Platform, num_ranks: int) -> Platform:
    """Return a machine with ``num_ranks`` ranks, on several nodes if needed."""
    if num_ranks <= machine.num_ranks:
        return machine.resized(num_ranks)
    return machine.cluster(-(-num_ranks // machine.node_size)).resized(num_ranks)


@lru_cache(maxsize=64)
def _prices(machine: Platform) -> Prices:
    return Prices(machine, default_library(machine))
