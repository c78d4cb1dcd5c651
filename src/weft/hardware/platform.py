"""A whole machine as data: one kind of device, and the levels of network that join them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from weft.errors import PlatformError, UsageError
from weft.hardware.curves import Library
from weft.hardware.device import Device
from weft.hardware.machine import Machine
from weft.hardware.measured import CodecRate, MeasuredNoise, TorchHost
from weft.hardware.network import Level
from weft.hardware.quantity import Rate, RatedRate, Seconds, Source, Table, to_table, unwritten
from weft.hardware.recorded_device import Recorded
from weft.hardware.toml_text import to_toml
from weft.units import brief

MOST_RANKS = 2**20  # eight times the largest clusters; a schedule may have a number for each rank


@dataclass(frozen=True, slots=True)
class Host:
    """The host of a node, as its devices see it.

    ``memory_rate`` is shared by the node and counts reads and writes; ``link_rate`` is between the
    host's memory and one device, per direction.
    """

    memory_rate: Rate
    link_rate: Rate
    link_latency: Seconds


@dataclass(frozen=True, slots=True)
class Nic:
    """One rank's port into the network between nodes."""

    rate: Rate
    latency: Seconds
    rated: RatedRate = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One number of a platform, as ``weft platforms NAME`` shows it."""

    key: str
    value: str | float
    basis: str
    source: str


@dataclass(frozen=True, slots=True)
class Platform:
    """Ranks joined by levels of network, the innermost first.

    The inner ``node_levels`` levels are one node. A ``staged`` platform has no links between its
    devices: a copy inside a node goes up to the host's memory and down again, and level 0 is the
    devices' links to it. ``nic`` is what joining several such nodes would use. ``sources`` says of
    every number, by its dotted key, where it comes from; ``machine`` on which one it was measured,
    ``recorded`` what traces showed of it. Where it was measured by itself, ``torch`` says what the
    host of its ranks spends, ``libraries`` what their collectives take, ``codecs`` what these do,
    and ``noise`` how quiet it was meanwhile.
    """

    __repr__ = brief

    name: str
    title: str = ""
    description: str = ""
    staged: bool = False
    node_levels: int = 1
    device: Device | None = None
    levels: tuple[Level, ...] = ()
    host: Host | None = None
    nic: Nic | None = None
    machine: Machine | None = None
    recorded: Recorded | None = None
    torch: TorchHost | None = None
    libraries: tuple[Library, ...] = ()
    codecs: tuple[CodecRate, ...] = ()
    noise: MeasuredNoise | None = None
    sources: Mapping[str, Source] = unwritten()

    def __post_init__(self) -> None:
        if self.num_ranks > MOST_RANKS:
            raise PlatformError(
                f"{self.name} has more than {MOST_RANKS} ranks, the maximum",
                "Use smaller levels or fewer of them.",
            )

    @property
    def num_ranks(self) -> int:
        """How many ranks the machine has."""
        return math.prod(level.size for level in self.levels)

    @property
    def node_size(self) -> int:
        """How many ranks share a node, and with it a host and its memory."""
        return math.prod(level.size for level in self.levels[: self.node_levels])

    @property
    def num_nodes(self) -> int:
        """How many nodes the machine has."""
        return self.num_ranks // self.node_size

    def require_device(self) -> Device:
        """Return the device, for work that a bare network cannot do."""
        if self.device is None:
            raise PlatformError(
                f"{self.name} is a network without devices",
                "Use a machine such as mi300x-8, or a file with a device.",
            )
        return self.device

    def resized(self, num_ranks: int) -> "Platform":
        """Keep the first ``num_ranks`` ranks, which must fill whole groups of the inner levels."""
        if num_ranks == self.num_ranks:
            return self
        levels = tuple(self._first_levels(num_ranks))
        return replace(
            self,
            levels=levels,
            node_levels=min(self.node_levels, len(levels)),
            sources=_without_levels_from(len(levels), self.sources),
        )

    def _first_levels(self, num_ranks: int) -> Iterator[Level]:
        if not 1 <= num_ranks <= self.num_ranks:
            raise UsageError(
                f"{self.name} has {self.num_ranks} ranks, {num_ranks} were asked for",
                f"Use 1 to {self.num_ranks}{self._larger(num_ranks)}.",
            )
        left, group = num_ranks, 1
        for level in self.levels:
            if left <= level.size:
                yield level.cut(left)
                return
            group *= level.size
            if left % level.size:
                below = num_ranks // group * group
                raise UsageError(
                    f"{num_ranks} ranks do not fill whole groups of {group} on {self.name}",
                    f"Use {below} or {below + group}.",
                )
            yield level
            left //= level.size

    def _larger(self, num_ranks: int) -> str:
        if self.nic is None or num_ranks < 1:
            return ""
        return f", or {self.name}x{-(-num_ranks // self.num_ranks)} for that many nodes"

    def cluster(self, num_nodes: int) -> "Platform":
        """Join ``num_nodes`` of this node through their NICs, as one more level."""
        if self.nic is None:
            raise PlatformError(
                f"{self.name} has no nic, so {num_nodes} of it cannot be joined",
                "Give its file a [nic] table with rate and latency.",
            )
        outer = Level("switch", num_nodes, self.nic.rate, self.nic.latency, self.nic.rated)
        return replace(
            self,
            name=f"{self.name}x{num_nodes}",
            title=f"{num_nodes} nodes of {self.title}",
            levels=(*self.levels, outer),
            nic=None,
            sources=_with_nic_as_level(len(self.levels), self.sources),
        )

    def to_table(self) -> Table:
        """Turn the platform into the table that a platform file holds."""
        return to_table(self, self.sources)

    def to_toml(self) -> str:
        """Write the platform as the text of a platform file."""
        return to_toml(self.to_table())

    def entries(self) -> Iterator[Entry]:
        """List every number with its basis and source, in the order of the file."""
        return _entries(self.to_table(), "")


def _entries(table: object, key: str) -> Iterator[Entry]:
    if isinstance(table, dict) and "value" in table:
        yield Entry(key, table["value"], table["basis"], table["source"])
    elif isinstance(table, (dict, list)):
        for name, value in table.items() if isinstance(table, dict) else enumerate(table):
            yield from _entries(value, f"{key}.{name}" if key else str(name))


def _without_levels_from(first: int, sources: Mapping[str, Source]) -> dict[str, Source]:
    """Forget the sources of levels that were cut off."""
    parts = {key: key.split(".") for key in sources}
    return {
        key: source
        for key, source in sources.items()
        if parts[key][0] != "levels" or int(parts[key][1]) < first
    }


def _with_nic_as_level(level: int, sources: Mapping[str, Source]) -> dict[str, Source]:
    """Move the sources of the NIC to the level it became."""
    return {
        f"levels.{level}{key.removeprefix('nic')}" if key.startswith("nic.") else key: source
        for key, source in sources.items()
    }
