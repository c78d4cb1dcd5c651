"""What transfers between ranks demand of ports, links and the host's memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.hardware import Level, Platform
from weft.hardware.topology import Crossing, crossings, ring_hops
from weft.schedule import WRITE, CommandKind, CommandTable
from weft.schedule.rank_symmetry import FLIP, Symmetry
from weft.simulator.resource_demands import Demands, Resource, key
from weft.simulator.rows import alike_in_node

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Transfers:
    """Bytes that go from rank to rank: which row moves them, and its weight."""

    row: Ints
    src: Ints
    dst: Ints
    weight: Floats


def transfers(table: CommandTable, size: Floats) -> Transfers:
    """Return every movement between ranks that the rows of a table make.

    A copy goes from its source to its destinations; computation reads to the rank that runs
    it and writes from there.
    """
    row = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
    kind = table.kind[row]
    rank = table.access_rank.astype(np.int64)
    runner = table.thread_rank[table.thread[row]].astype(np.int64)
    first = table.access_start[row]
    number = np.arange(len(row)) - first
    copies = np.isin(
        kind, (CommandKind.COPY, CommandKind.BROADCAST, CommandKind.ENCODE, CommandKind.DECODE)
    ) & (number > 0)
    swaps = kind == CommandKind.SWAP
    other = first + np.where(swaps & (number == 0), 1, 0)  # the other side of a swap
    works = (kind == CommandKind.REDUCE) | (kind == CommandKind.KERNEL)
    writes = works & (table.access_mode == WRITE)
    # A copy moves its bytes once to each destination. A Reduce reads other amounts than it writes,
    # and the flow is counted in what it writes.
    share = np.where(works, table.access_nbytes / np.maximum(size[row], 1), 1.0)
    pieces = (
        (copies, rank[first], rank),
        (swaps, rank, rank[other]),
        (works & ~writes, rank, runner),
        (writes, runner, rank),
    )
    chosen = [(row[m], src[m], dst[m], share[m]) for m, src, dst in pieces]
    joined = [np.concatenate(columns) for columns in zip(*chosen, strict=True)]
    # What stays on its rank demands memory, not the network.
    moving = (joined[1] != joined[2]) & (joined[3] > 0)
    return Transfers(*(column[moving] for column in joined))


def add_network(demands: Demands, platform: Platform, symmetry: Symmetry, moved: Transfers) -> None:
    """Add the ports and links that transfers cross, level by level."""
    add = {"switch": _add_switch, "mesh": _add_mesh, "ring": _add_ring}
    for crossing in crossings(platform.levels, moved.src, moved.dst):
        level = platform.levels[crossing.level]
        rows, weight = moved.row[crossing.transfers], moved.weight[crossing.transfers]
        add[level.kind](demands, _Crossed(crossing, level, symmetry, rows, weight))
    if platform.staged:
        _add_host_memory(demands, platform, symmetry, moved)


@dataclass(frozen=True, slots=True)
class _Crossed:
    """Transfers that cross one level, with their rows and weights."""

    crossing: Crossing
    level: Level
    symmetry: Symmetry
    rows: Ints
    weight: Floats

    @property
    def action(self) -> str | None:
        return self.symmetry.actions[self.crossing.level]

    @property
    def stride(self) -> int:
        return self.symmetry.strides[self.crossing.level]

    def position(self, rank: Ints) -> Ints:
        """Return the coordinates of ranks along this level."""
        return rank // self.stride % self.level.size

    def key(self, kind: Resource | Ints, rank: Ints, part: int | Ints = 0) -> Ints:
        """Return the resource of this level that the representative of ``rank`` owns."""
        owner = self.symmetry.representative(rank)
        return key(kind, owner, level=self.crossing.level, part=part)


def _add_switch(demands: Demands, on: _Crossed) -> None:
    out = on.key(Resource.PORT_OUT, on.crossing.src)
    into = on.key(Resource.PORT_IN, on.crossing.dst)
    demands.add(on.rows, out, on.weight, on.level.rate)
    demands.add(on.rows, into, on.weight, on.level.rate)


def _add_mesh(demands: Demands, on: _Crossed) -> None:
    """Add the links of a mesh, named by owner and an offset that moving all ranks keeps."""
    src, dst = on.position(on.crossing.src), on.position(on.crossing.dst)
    # Under rotations the difference of positions stays the same, under flips (recursive doubling)
    # their exclusive or.
    offset = src ^ dst if on.action == FLIP else (dst - src) % on.level.size
    keys = on.key(Resource.LINK, on.crossing.src, offset)
    demands.add(on.rows, keys, on.weight, on.level.link_rate)


def _add_ring(demands: Demands, on: _Crossed) -> None:
    """Add every link that is crossed; those of a symmetric ring are all at its representative."""
    src, dst = on.position(on.crossing.src), on.position(on.crossing.dst)
    hops = ring_hops(on.level.size, src, dst)
    kind = np.where(hops > 0, int(Resource.RING_UP), int(Resource.RING_DOWN))
    count = np.abs(hops)
    if on.action:
        # By symmetry each link of the ring carries what k transfers of one rank bring over k hops:
        # one link with k times the weight stands for them, exactly.
        demands.add(on.rows, on.key(kind, on.crossing.src), on.weight * count, on.level.rate)
        return
    which = np.repeat(np.arange(len(hops)), count)
    step = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    place = (src[which] + step * np.sign(hops[which])) % on.level.size
    rank = on.crossing.src[which] + (place - src[which]) * on.stride
    demands.add(on.rows[which], on.key(kind[which], rank), on.weight[which], on.level.rate)


def _add_host_memory(
    demands: Demands, platform: Platform, symmetry: Symmetry, moved: Transfers
) -> None:
    """Add the host's memory: without peer links every byte is written to it and read again."""
    if platform.host is None:
        return
    inside = platform.node_size
    local = moved.src // inside == moved.dst // inside
    node = symmetry.representative(moved.src[local]) // inside
    keys = key(Resource.HOST_MEMORY, node)
    # Written once and read once, by every rank that the simulated one stands for.
    weight = 2 * moved.weight[local] * alike_in_node(platform, symmetry)
    demands.add(moved.row[local], keys, weight, platform.host.memory_rate)
