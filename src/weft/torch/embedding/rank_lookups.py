"""What one rank looks up: its shards, where they lie, and the bags of their tables."""

from typing import NamedTuple

from weft.fused import TableShard

Memory = tuple[str, int, int, int, int, int, int]
Addresses = tuple[int, int, int, int, int, bool, bool]
Result = tuple[int, float, float, int, int, int, int]


class Lookups(NamedTuple):
    """Shards with their memory, their columns and their bags, as the native core reads them."""

    shards: tuple[TableShard, ...]
    memory: list[Memory]
    where: list[tuple[int, bool, int]]
    bags: list[Addresses]
    mean: bool
