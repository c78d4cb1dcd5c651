"""Lookups by torch, by FBGEMM and by weft: the same tables, bags and results."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.lookups import TURNS, Lookups

AllToAll = Callable[[Tensor, Tensor], Any]  # out, x: an all-to-all of equal parts
Bags = list[tuple[Tensor, Tensor]]
Pool = Callable[[Bags], Tensor]  # one column block a table, samples as rows


class LookupRunner:
    """The lookups of one rank; each call takes the next set of indices."""

    def __init__(self, lookups: Lookups, rank: int, num_ranks: int) -> None:
        self.lookups = lookups
        held = lookups.held(rank, num_ranks)
        offsets = torch.from_numpy(lookups.offsets)
        self.turns = [
            [(torch.from_numpy(lookups.indices(table, turn)), offsets) for table in held]
            for turn in range(TURNS)
        ]
        self._turn = 0

    def act(self) -> None:
        """Look up the next set."""
        self.rows(self.next_bags())

    def next_bags(self) -> Bags:
        """Return the next set of indices."""
        self._turn = (self._turn + 1) % TURNS
        return self.turns[self._turn]

    def rows(self, bags: Bags) -> Tensor:
        """Return this rank's rows as they come."""
        raise NotImplementedError

    def ordered(self, rows: Tensor) -> Tensor:
        """Return them with a row a sample and all tables in order."""
        return rows

    def answer(self) -> str:
        """Look up the first set and return a digest of the rows."""
        rows = self.ordered(self.rows(self.turns[0])).contiguous()
        return hashlib.blake2b(rows.numpy().tobytes(), digest_size=8).hexdigest()

    def free(self) -> None:
        """Leave its memory to Python."""


class Serial(LookupRunner):
    """Pool everything, concatenate it, then exchange it by an all-to-all."""

    def __init__(
        self, lookups: Lookups, rank: int, num_ranks: int, pool: Pool, exchange: AllToAll | None
    ) -> None:
        super().__init__(lookups, rank, num_ranks)
        self._pool, self._exchange, self._num_ranks = pool, exchange, num_ranks
        width = len(lookups.held(rank, num_ranks)) * lookups.dim
        self._out = torch.zeros(num_ranks, lookups.batch // num_ranks, width)

    def rows(self, bags: Bags) -> Tensor:
        """Return the rows in blocks by sender, without a copy into one row a sample."""
        with torch.no_grad():
            pooled = self._pool(bags)
            if self._exchange is None:
                return pooled
            self._exchange(self._out, pooled.view_as(self._out))
            return self._out

    def ordered(self, rows: Tensor) -> Tensor:
        """Put the blocks of the senders side by side."""
        return rows if self._exchange is None else rows.permute(1, 0, 2).flatten(1)


def torch_bags(lookups: Lookups, rank: int, num_ranks: int) -> Pool:
    """Pool by nn.EmbeddingBag, which has one call for a table, in one thread.

    Tables lie in the memory that nn.EmbeddingBag takes: numpy's would lend them large pages and
    rows that share a line of the cache, neither of which its users have.
    """
    torch.set_num_threads(1)
    bags = [_torch_bag(lookups, table) for table in lookups.held(rank, num_ranks)]

    def pool(given: Bags) -> Tensor:
        return torch.cat([bag(i, o) for bag, (i, o) in zip(bags, given, strict=True)], 1)

    return pool


def _torch_bag(lookups: Lookups, table: int) -> nn.EmbeddingBag:
    bag = nn.EmbeddingBag(lookups.rows, lookups.dim, mode="sum", include_last_offset=True)
    with torch.no_grad():
        bag.weight.copy_(torch.from_numpy(lookups.values(table)))
    return bag.requires_grad_(requires_grad=False)


def fbgemm_bags(lookups: Lookups, rank: int, num_ranks: int) -> Pool:
    """Pool by FBGEMM's batched tables: one call for all of them, joined as it writes."""
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

    held = lookups.held(rank, num_ranks)
    shape = (lookups.rows, lookups.dim, EmbeddingLocation.HOST, ops.ComputeDevice.CPU)
    tables = ops.SplitTableBatchedEmbeddingBagsCodegen([shape] * len(held))
    for weight, table in zip(tables.split_embedding_weights(), held, strict=True):
        weight.copy_(torch.from_numpy(lookups.values(table)))
    size = lookups.batch * lookups.pooling
    offsets = torch.arange(0, len(held) * size + 1, lookups.pooling)
    joined: dict[int, Tensor] = {}

    def pool(given: Bags) -> Tensor:
        key = given[0][0].data_ptr()
        if key not in joined:  # its users have their indices in one piece
            joined[key] = torch.cat([indices for indices, _ in given])
        rows: Tensor = tables(joined[key], offsets)
        return rows

    return pool


class Fused(LookupRunner):
    """weft's module."""

    def __init__(self, lookups: Lookups, rank: int, num_ranks: int) -> None:
        import weft.torch

        super().__init__(lookups, rank, num_ranks)
        held = lookups.held(rank, num_ranks)
        tables: dict[str, Any] = {
            f"t{t}": (lookups.rows, lookups.dim) for t in range(lookups.tables)
        }
        holder = [r for r in range(num_ranks) for _ in lookups.held(r, num_ranks)]
        tables |= {f"t{t}": torch.from_numpy(lookups.values(t)) for t in held}
        plan = [weft.torch.table_wise(r) for r in holder]
        self._bag = weft.torch.EmbeddingAllToAll(tables, sharding=plan)
        self._joined = {
            bags[0][0].data_ptr(): torch.cat([indices for indices, _ in bags])
            for bags in self.turns
        }
        size = lookups.batch * lookups.pooling
        self._offsets = torch.arange(0, len(held) * size + 1, lookups.pooling)

    @property
    def tables(self) -> list[Tensor]:
        """The tables that this rank holds."""
        return [weight.detach() for weight in self._bag.weights.values()]

    def rows(self, bags: Bags) -> Tensor:
        """Return the looked-up rows, those of a sample joined."""
        with torch.no_grad():
            rows: Tensor = self._bag(self._joined[bags[0][0].data_ptr()], self._offsets)
        return rows
