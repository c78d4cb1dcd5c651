"""weft's pooling by itself: nothing is exchanged."""

import torch
from torch import Tensor

from weft._core import pool_into
from weft.bench.lookups import Lookups
from weft.bench.torch_lookups import Bags, Looking
from weft.torch.tables import large_pages


class Alone(Looking):
    """weft's kernel by itself, in one process."""

    def __init__(self, lookups: Lookups) -> None:
        super().__init__(lookups, 0, 1)
        self._tables = []
        for table in lookups.held(0, 1):
            memory = large_pages((lookups.rows, lookups.dim), torch.float32)
            self._tables.append(memory.copy_(torch.from_numpy(lookups.values(table))))
        self._out = torch.zeros(lookups.batch, lookups.tables * lookups.dim)

    def rows(self, bags: Bags) -> Tensor:
        """Pool table after table into one row a sample."""
        lookups, out = self.lookups, self._out
        for number, (table, (indices, offsets)) in enumerate(zip(self._tables, bags, strict=True)):
            shard = (
                f"t{number}",
                table.data_ptr(),
                *(lookups.rows, 0, lookups.rows, lookups.dim),
                0,
            )
            there = (indices.data_ptr(), offsets.data_ptr(), 0)
            given = (*there, indices.numel(), lookups.batch, True, True)
            start = out.data_ptr() + 4 * number * lookups.dim
            pool_into(shard, given, False, 0, lookups.batch, start, out.shape[1])
        return out
