"""Embedding tables of a GPU: lookups that store into the outputs of other GPUs, and gradients.

The forward pass is weft's fused Triton kernel over symmetric memory. The backward pass exchanges
gradients with torch's all-to-all of the group and updates rows with torch's own kernels. Not yet
run on hardware: tests run it on CPU tensors in Triton's interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import UsageError
from weft.fused import EmbeddingBatch
from weft.torch.embedding.row_gradients import RowOptimizer, RowwiseAdagrad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.fused import Sharding, TableShard
    from weft.fused.torch_symmetric_tensors import SymmetricMemory
    from weft.fused.triton_launch import EmbeddingAllToAllOperator
    from weft.torch.backend.c10d import ProcessGroup
    from weft.torch.embedding.bag_inputs import Bags

_SLICES = 4  # of a rank's samples
_LEAST_SLICE = 64  # samples: the most that a program pools at once


class DeviceExchange:
    """Lookups and gradients of one rank's shards, which lie on a GPU."""

    def __init__(
        self, memory: SymmetricMemory, sharding: Sharding, group: ProcessGroup | None
    ) -> None:
        if sharding.joined:
            raise UsageError(
                "sharding: rows of a table on several GPUs are not supported.",
                "Shard tables table-wise or column-wise.",
            )
        self.memory, self.sharding, self.group = memory, sharding, group
        self.shards: tuple[TableShard, ...] = sharding.of(memory.rank)
        self._operators: dict[int, EmbeddingAllToAllOperator] = {}

    def columns(self, shard: TableShard) -> slice:
        """Return the columns of a shard in a row of the output."""
        first = self.sharding.starts[shard.table] + shard.columns[0]
        return slice(first, first + shard.dim)

    def lookup(self, weights: Sequence[Tensor], bags: Bags, *, mean: bool) -> Tensor:
        """Pool bags into the outputs of all ranks; return this rank's rows."""
        from weft.fused.triton_launch import TableRows

        operator = self._operator(bags.samples)
        operator.check()  # of the last call: this one need not wait for the device
        operator.launch(
            [
                TableRows(weight, *bags.of_table(n), self.columns(shard).start, bags.weights)
                for n, (shard, weight) in enumerate(zip(self.shards, weights, strict=True))
            ],
            mean=mean,
        )
        holders = [rank for rank in range(self.memory.num_ranks) if self.sharding.of(rank)]
        for part in range(operator.num_slices):
            operator.finish_slice(part, holders)
        return operator.output.clone()

    def gradients(self, bags: Bags, rows: Tensor, *, mean: bool) -> list[tuple[Tensor, Tensor]]:
        """Return the indices of each shard, and the gradient of each lookup of them."""
        self._operator(bags.samples).check()
        of_samples = self._exchanged(bags.samples, rows)
        found, start = [], 0
        for number, shard in enumerate(self.shards):
            indices, offsets = bags.of_table(number)
            mine = of_samples[:, start : start + shard.dim]
            start += shard.dim
            lengths = offsets.diff()
            if mean:
                mine = mine / lengths.clamp_min(1).unsqueeze(1)
            used = indices[int(offsets[0]) : int(offsets[-1])]
            values = mine.repeat_interleave(lengths, 0)
            if bags.weights is not None:
                values = values * bags.weights[int(offsets[0]) : int(offsets[-1])].unsqueeze(1)
            found.append((used, values))
        return found

    def weight_gradients(self, weights: Sequence[Tensor], bags: Bags, rows: Tensor) -> Tensor:
        """Return the gradients of the weights of the lookups."""
        of_samples, start = self._exchanged(bags.samples, rows), 0
        assert bags.weights is not None
        out = torch.zeros_like(bags.weights)
        for number, (shard, weight) in enumerate(zip(self.shards, weights, strict=True)):
            indices, offsets = bags.of_table(number)
            first, last = int(offsets[0]), int(offsets[-1])
            mine = of_samples[:, start : start + shard.dim].repeat_interleave(offsets.diff(), 0)
            out[first:last] = (weight[indices[first:last]].float() * mine).sum(1)
            start += shard.dim
        return out

    def _operator(self, samples: int) -> EmbeddingAllToAllOperator:
        """Return the operator of a batch size; create it on all ranks together if there is none."""
        from weft.fused.triton_launch import EmbeddingAllToAllOperator

        if samples not in self._operators:
            batch = EmbeddingBatch(self.sharding, samples)
            counts = [batch.count(rank) for rank in range(self.memory.num_ranks)]
            each = -(-max(counts) // _SLICES)
            sliced = max(_LEAST_SLICE, -(-each // _LEAST_SLICE) * _LEAST_SLICE)
            self._operators[samples] = EmbeddingAllToAllOperator(
                self.memory, counts, self.sharding.width, slice_samples=sliced
            )
        return self._operators[samples]

    def _exchanged(self, samples: int, rows: Tensor) -> Tensor:
        """Return the gradients of all samples for the columns of this rank's shards."""
        batch, ranks = EmbeddingBatch(self.sharding, samples), range(self.memory.num_ranks)
        widths = [sum(shard.dim for shard in self.sharding.of(rank)) for rank in ranks]
        sent = [
            rows[:, self.columns(shard)].reshape(-1)
            for rank in ranks
            for shard in self.sharding.of(rank)
        ]
        mine = widths[self.memory.rank]
        taken = [batch.count(rank) * mine for rank in ranks]
        given = [rows.shape[0] * width for width in widths]
        flat = torch.cat(sent) if sent else rows.new_empty(0)
        out = flat.new_empty(sum(taken))
        dist.all_to_all_single(out, flat, taken, given, group=self.group)
        blocks = []
        for rank, block in zip(ranks, torch.split(out, taken), strict=True):
            parts = torch.split(block, [batch.count(rank) * shard.dim for shard in self.shards])
            shaped = [p.view(-1, s.dim) for p, s in zip(parts, self.shards, strict=True)]
            blocks.append(torch.cat(shaped, 1) if shaped else rows.new_empty(batch.count(rank), 0))
        return torch.cat(blocks)


def update_rows(
    weight: Tensor, indices: Tensor, values: Tensor, rule: RowOptimizer, state: Tensor | None
) -> None:
    """Apply an optimizer to the rows that have a gradient."""
    if not isinstance(rule, RowwiseAdagrad) or state is None:
        weight.index_add_(0, indices, values.to(weight.dtype), alpha=-rule.lr)
        return
    rows, where = torch.unique(indices, return_inverse=True)
    sums = values.new_zeros(len(rows), values.shape[1]).index_add_(0, where, values)
    state[rows] += sums.square().mean(1)
    scaled = sums / (state[rows].sqrt() + rule.eps).unsqueeze(1)
    weight.index_add_(0, rows, scaled.to(weight.dtype), alpha=-rule.lr)
