"""What each command demands while its bytes move: ports, links, memory, engines, units.

A resource is known by a key. In a collapsed simulation the keys name representatives: of
the transfers that a symmetric schedule makes, as many cross a given port as one transfer
crosses ports of that kind, so the weights stay what they are and only the owner changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.hardware.topology import Crossing, crossings, ring_hops
from weft.schedule import Kind
from weft.schedule.symmetry import FLIP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.hardware import Platform
    from weft.schedule import Table
    from weft.schedule.symmetry import Symmetry

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Resource(IntEnum):
    """The kinds of resources: the leading part of a key."""

    MEMORY = 0
    UNITS = 1
    LAUNCH = 2
    ENGINE = 3
    PORT_OUT = 4
    PORT_IN = 5
    LINK = 6
    RING_UP = 7
    RING_DOWN = 8
    HOST_MEMORY = 9


LINKS = (Resource.PORT_OUT, Resource.LINK, Resource.RING_UP, Resource.RING_DOWN)


def _key(kind: Resource, owner: Any, *, level: int = 0, part: Any = 0) -> Any:  # noqa: ANN401
    return (int(kind) << 58) | (level << 54) | (np.asarray(owner, np.int64) << 22) | part


@dataclass(slots=True)
class Demands:
    """Demands collected piece by piece: rows, keys, weights, and capacities of the keys."""

    rows: list[Ints] = field(default_factory=list)
    keys: list[Ints] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)
    capacities: list[Floats] = field(default_factory=list)

    def add(self, rows: Ints, keys: Any, weight: Any, capacity: Any) -> None:  # noqa: ANN401
        shape = rows.shape
        self.rows.append(rows)
        self.keys.append(np.broadcast_to(keys, shape))
        self.weights.append(np.broadcast_to(np.asarray(weight, np.float64), shape))
        self.capacities.append(np.broadcast_to(np.asarray(capacity, np.float64), shape))

    def columns(self, num_rows: int) -> dict[str, Any]:
        """The columns of the native core, with ``key`` of each resource beside them."""
        rows = np.concatenate([*self.rows, np.empty(0, np.int64)])
        order = np.argsort(rows, kind="stable")
        keys = np.concatenate([*self.keys, np.empty(0, np.int64)])[order]
        unique, first, number = np.unique(keys, return_index=True, return_inverse=True)
        capacity = np.concatenate([*self.capacities, np.empty(0)])[order][first]
        start = np.zeros(num_rows + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=start[1:])
        return {
            "demand_start": start,
            "demand_resource": number.reshape(-1).astype(np.int32),
            "demand_weight": np.concatenate([*self.weights, np.empty(0)])[order],
            "capacity": np.ascontiguousarray(capacity),
            "key": unique,
        }


@dataclass(frozen=True, slots=True)
class Transfers:
    """Bytes that go from rank to rank: which row moves them, and its weight."""

    row: Ints
    src: Ints
    dst: Ints
    weight: Floats


def transfers(table: Table, size: Floats) -> Transfers:
    """Every movement between ranks that the rows of a table make.

    A copy goes from its source to its destinations; computation reads to the rank that runs
    it and writes from there.
    """
    row = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
    kind = table.kind[row]
    number = np.arange(len(row)) - table.access_start[row]
    rank = table.access_rank.astype(np.int64)
    runner = table.thread_rank[table.thread[row]].astype(np.int64)
    first = rank[np.minimum(table.access_start[row], max(len(rank) - 1, 0))] if len(rank) else rank
    copies = np.isin(kind, (Kind.COPY, Kind.BROADCAST, Kind.ENCODE, Kind.DECODE)) & (number > 0)
    swaps = kind == Kind.SWAP
    # The other side of a swap is the neighbouring access.
    other = np.where(number == 0, 1, -1) + np.arange(len(row))
    works = (kind == Kind.REDUCE) | (kind == Kind.KERNEL)
    writes = works & (table.access_mode == 2)  # noqa: PLR2004 - WRITE
    reads = works & ~writes
    share = np.where(works, table.access_nbytes / np.maximum(size[row], 1), 1.0)
    pieces = [
        (copies, first, rank),
        (swaps, rank, rank[np.clip(other, 0, max(len(rank) - 1, 0))] if len(rank) else rank),
        (reads, rank, runner),
        (writes, runner, rank),
    ]
    chosen = [(row[m], s[m], d[m], share[m]) for m, s, d in pieces]
    joined = [np.concatenate(columns) for columns in zip(*chosen, strict=True)]
    away = joined[1] != joined[2]
    return Transfers(*(column[away] for column in joined))


def add_network(
    demands: Demands, platform: Platform, symmetry: Symmetry, moved: Transfers
) -> None:
    """Ports and links that transfers cross, level by level."""
    for crossing in crossings(platform.levels, moved.src, moved.dst):
        rows, weight = moved.row[crossing.transfers], moved.weight[crossing.transfers]
        level = platform.levels[crossing.level]
        if level.kind == "switch":
            for kind, rank in (
                (Resource.PORT_OUT, crossing.src),
                (Resource.PORT_IN, crossing.dst),
            ):
                keys = _key(kind, symmetry.representative(rank), level=crossing.level)
                demands.add(rows, keys, weight, level.rate)
        elif level.kind == "mesh":
            owner = symmetry.representative(crossing.src)
            keys = _key(
                Resource.LINK, owner, level=crossing.level, part=_offset(crossing, symmetry)
            )
            demands.add(rows, keys, weight, level.link_rate)
        else:
            _add_ring(demands, crossing, symmetry, level.rate, rows, weight)
    if platform.staged:
        _add_host_memory(demands, platform, symmetry, moved)


def _coordinates(crossing: Crossing, symmetry: Symmetry) -> tuple[Ints, Ints, int, int]:
    dim, stride = symmetry.dims[crossing.level], symmetry.strides[crossing.level]
    return crossing.src // stride % dim, crossing.dst // stride % dim, dim, stride


def _offset(crossing: Crossing, symmetry: Symmetry) -> Ints:
    """Which of its links a rank uses, so named that moving all ranks does not change it."""
    src, dst, dim, _ = _coordinates(crossing, symmetry)
    return src ^ dst if symmetry.actions[crossing.level] == FLIP else (dst - src) % dim


def _add_ring(  # noqa: PLR0913 - the parts of one crossing
    demands: Demands,
    crossing: Crossing,
    symmetry: Symmetry,
    rate: float,
    rows: Ints,
    weight: Floats,
) -> None:
    src, dst, dim, stride = _coordinates(crossing, symmetry)
    hops = ring_hops(dim, src, dst)
    kind = np.where(hops > 0, int(Resource.RING_UP), int(Resource.RING_DOWN))
    if symmetry.actions[crossing.level]:
        owner = symmetry.representative(crossing.src)
        keys = (kind << 58) | _key(Resource.MEMORY, owner, level=crossing.level)
        demands.add(rows, keys, weight * np.abs(hops), rate)
        return
    count = np.abs(hops)
    which = np.repeat(np.arange(len(rows)), count)
    step = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    position = (src[which] + step * np.sign(hops[which])) % dim
    owner = symmetry.representative(crossing.src[which] + (position - src[which]) * stride)
    keys = (kind[which] << 58) | _key(Resource.MEMORY, owner, level=crossing.level)
    demands.add(rows[which], keys, weight[which], rate)


def _add_host_memory(
    demands: Demands, platform: Platform, symmetry: Symmetry, moved: Transfers
) -> None:
    """Without peer links every byte is written to the host's memory and read again."""
    if platform.host is None:
        return
    inside = platform.node_size
    local = moved.src // inside == moved.dst // inside
    node = symmetry.representative(moved.src[local]) // inside
    collapsed = zip(symmetry.dims, symmetry.actions, strict=True)
    alike = [dim for dim, action in list(collapsed)[: platform.node_levels] if action]
    weight = 2 * moved.weight[local] * np.prod(alike, dtype=np.int64)
    keys = _key(Resource.HOST_MEMORY, node)
    demands.add(moved.row[local], keys, weight, platform.host.memory_rate)


def add_memory(demands: Demands, table: Table, symmetry: Symmetry, size: Floats, rate: float) -> None:
    """Every byte read or written passes the memory of the rank that has it."""
    row = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
    passes = np.where(table.access_mode == 3, 2, 1)  # noqa: PLR2004 - read and written
    weight = passes * table.access_nbytes / np.maximum(size[row], 1)
    used = (table.kind[row] != Kind.KERNEL) & (weight > 0)
    owner = symmetry.representative(table.access_rank.astype(np.int64)[used])
    demands.add(row[used], _key(Resource.MEMORY, owner), weight[used], rate)


def memory_key(rank: Any) -> Any:  # noqa: ANN401 - numbers or arrays
    return _key(Resource.MEMORY, rank)


def units_key(rank: Any) -> Any:  # noqa: ANN401
    return _key(Resource.UNITS, rank)


def launch_key(row: Any) -> Any:  # noqa: ANN401
    return _key(Resource.LAUNCH, row)


def engine_key(rank: Any, queue: Any) -> Any:  # noqa: ANN401
    return _key(Resource.ENGINE, rank, part=queue)


def resource_kind(keys: Ints) -> Ints:
    """The kind of resource that each key names."""
    return keys >> 58
