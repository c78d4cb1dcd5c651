"""The lookups of one rank: its shards, their memory and the bags of their tables."""

from typing import NamedTuple

from weft.fused import TableShard

ShardMemory = tuple[str, int, int, int, int, int, int]
BagAddresses = tuple[int, int, int, int, int, bool, bool]
GradientTarget = tuple[int, float, float, int, int, int, int]


class RankLookups(NamedTuple):
    """Shards with their memory, columns and bags, in the form of the native core."""

    shards: tuple[TableShard, ...]
    memory: list[ShardMemory]
    where: list[tuple[int, bool, int]]
    bags: list[BagAddresses]
    mean: bool
