"""weft's embedding pooling alone, without the all-to-all."""

import torch
from torch import Tensor

from benchmarks.lookups import Lookups
from benchmarks.torch_lookups import Bags, LookupRunner
from weft._core import pool_into
from weft.torch.embedding.table_storage import large_pages


class PooledBlocks:
    """Tables of one rank, pooled into what an all-to-all would send: a block for each rank."""

    def __init__(self, lookups: Lookups, tables: list[Tensor], num_ranks: int) -> None:
        self._lookups, self._tables = lookups, tables
        width = len(tables) * lookups.dim
        self.blocks = torch.zeros(num_ranks, lookups.batch // num_ranks, width)

    def pool(self, bags: Bags) -> Tensor:
        """Look up table after table into one row a sample; return all rows."""
        lookups, rows = self._lookups, self.blocks.flatten(0, 1)
        for number, (table, (indices, offsets)) in enumerate(zip(self._tables, bags, strict=True)):
            shape = (lookups.rows, 0, lookups.rows, lookups.dim, 0)
            shard = (f"t{number}", table.data_ptr(), *shape)
            there = (indices.data_ptr(), offsets.data_ptr(), 0)
            given = (*there, indices.numel(), lookups.batch, True, True)
            start = rows.data_ptr() + 4 * number * lookups.dim
            pool_into(shard, given, False, 0, lookups.batch, start, rows.shape[1])
        return rows


class PoolingOnly(LookupRunner):
    """weft's pooling kernel alone, in one process."""

    def __init__(self, lookups: Lookups) -> None:
        super().__init__(lookups, 0, 1)
        tables = []
        for table in lookups.held(0, 1):
            memory = large_pages((lookups.rows, lookups.dim), torch.float32)
            tables.append(memory.copy_(torch.from_numpy(lookups.values(table))))
        self._pooled = PooledBlocks(lookups, tables, 1)

    def rows(self, bags: Bags) -> Tensor:
        """Pool table after table into one row a sample."""
        return self._pooled.pool(bags)
