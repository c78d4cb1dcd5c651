"""One training step of a random model, as torch runs it without weft.

The step is the same whether it is run or captured on fake tensors: it needs only the process group
of its rank.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from weft.calibration.torch_op_calls import random_rows
from weft.local_runs import synthetic_models
from weft.local_runs.synthetic_models import SyntheticModel
from weft.local_runs.torch_synthetic_models import NUMBERS, Dense, TorchTransformer
from weft.models.tables import Table, table_wise

_TURNS = 3  # sets of indices, used in turn
Step = Callable[[], Any]


def training(model: SyntheticModel) -> Step:
    """Build a model and return one step of its training, dense parts by DDP."""
    torch.manual_seed(model.seed)
    if isinstance(model, synthetic_models.SyntheticDlrm):
        return _dlrm_training(model)
    return _transformer_training(model)


def held(model: synthetic_models.SyntheticDlrm, rank: int) -> list[int]:
    """Return the tables of a rank, balanced by their lookups."""
    tables = [Table(f"t{n}", r, model.dim, p, z) for n, (r, p, z) in enumerate(model.tables)]
    return [s.table for s in table_wise(tables, synthetic_models.RANKS) if s.rank == rank]


def _lookups(
    model: synthetic_models.SyntheticDlrm, tables: list[int]
) -> list[list[tuple[Tensor, Tensor]]]:
    generator = np.random.default_rng(model.seed)
    popular = [model.tables[table] for table in tables]
    return [
        [
            (
                random_rows(rows, model.batch * pooling, zipf, generator),
                torch.arange(0, model.batch * pooling + 1, pooling),
            )
            for rows, pooling, zipf in popular
        ]
        for _ in range(_TURNS)
    ]


class Exchanged(torch.autograd.Function):
    """An all-to-all of pooled rows: all samples of own tables become own samples of all tables."""

    @staticmethod
    def forward(ctx: Any, pooled: Tensor, counts: list[int], rank: int) -> Tensor:
        """Map (samples of all, own tables, dim) to (own samples, all tables, dim)."""
        samples, dim = pooled.shape[0] // len(counts), pooled.shape[2]
        ctx.sizes = [samples * count * dim for count in counts]
        ctx.own = [samples * counts[rank] * dim] * len(counts)
        out = pooled.new_empty(sum(ctx.sizes))
        dist.all_to_all_single(out, pooled.flatten(), ctx.sizes, ctx.own)
        ctx.shape, ctx.counts = pooled.shape, counts
        parts = [
            part.view(samples, count, dim)
            for part, count in zip(torch.split(out, ctx.sizes), counts, strict=True)
        ]
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Send the gradients of rows back to their tables."""
        x = torch.cat([part.flatten() for part in torch.split(grads[0], ctx.counts, 1)])
        out = x.new_empty(sum(ctx.own))
        dist.all_to_all_single(out, x, ctx.own, ctx.sizes)
        return out.view(ctx.shape), None, None


def _dlrm_training(model: synthetic_models.SyntheticDlrm) -> Step:
    rank, tables = dist.get_rank(), held(model, dist.get_rank())
    counts = [len(held(model, each)) for each in range(synthetic_models.RANKS)]
    bags = nn.ModuleList(
        nn.EmbeddingBag(
            model.tables[t][0], model.dim, mode="sum", include_last_offset=True, sparse=True
        )
        for t in tables
    )
    dense = DistributedDataParallel(Dense(len(model.tables), model.bottom, model.top))
    samples = model.batch // synthetic_models.RANKS
    numbers, clicks = torch.rand(samples, NUMBERS), torch.rand(samples).round()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (dense, bags)]
    turns = _turns(_lookups(model, tables))

    def step() -> Tensor:
        pooled = torch.stack([b(i, o) for b, (i, o) in zip(bags, next(turns), strict=True)], 1)
        came = Exchanged.apply(pooled, counts, rank)  # type: ignore[no-untyped-call]
        loss = functional.binary_cross_entropy_with_logits(dense(numbers, came), clicks)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    return step


def _turns(sets: list[Any]) -> Iterator[Any]:
    while True:
        yield from sets


def _transformer_training(model: synthetic_models.SyntheticTransformer) -> Step:
    wrapped = DistributedDataParallel(TorchTransformer(model))
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4)
    shape = (model.batch // synthetic_models.RANKS, model.seq)
    tokens, wanted = (torch.randint(0, model.vocab, shape) for _ in range(2))

    def step() -> Tensor:
        scores = wrapped(tokens)
        loss = functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step
