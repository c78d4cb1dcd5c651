"""What one rank looks up: its shards, where they lie, and the bags of their tables."""

from typing import NamedTuple

from weft.fused import TableShard

ShardMemory = tuple[str, int, int, int, int, int, int]
BagAddresses = tuple[int, int, int, int, int, bool, bool]
GradientTarget = tuple[int, float, float, int, int, int, int]


class RankLookups(NamedTuple):
    """Shards with their memory, their columns and their bags, as the native core reads them."""

    shards: tuple[TableShard, ...]
    memory: list[ShardMemory]
    where: list[tuple[int, bool, int]]
    bags: list[BagAddresses]
    mean: bool
