"""Training steps of a small DLRM, by torch and Gloo or by weft's fused embedding."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.lookups import Lookups
from benchmarks.torch_lookups import LookupRunner
from weft.local_runs.torch_synthetic_models import NUMBERS, Dense

_RATE = 0.05
_CHECKED = 5  # steps
_SCALE = 0.01  # of the tables' values, so that sums of bags are of the size of a feature


class _Exchanged(torch.autograd.Function):
    """An all-to-all whose gradients go the same way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        del ctx
        x = grads[0].contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        return out


class Serial(nn.Module):
    """nn.EmbeddingBag with sparse gradients, then an all-to-all."""

    def __init__(self, lookups: Lookups, rank: int, num_ranks: int) -> None:
        super().__init__()
        self._num_ranks, self._dim = num_ranks, lookups.dim
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(
                lookups.rows, lookups.dim, mode="sum", include_last_offset=True, sparse=True
            )
            for _ in lookups.held(rank, num_ranks)
        )
        self.optimizer = torch.optim.SGD(self.bags.parameters(), lr=_RATE)

    def forward(self, bags: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return (samples, tables, dim)."""
        pooled = torch.stack([bag(i, o) for bag, (i, o) in zip(self.bags, bags, strict=True)], 1)
        came: Tensor = _Exchanged.apply(pooled)  # type: ignore[no-untyped-call]
        return (
            came.view(self._num_ranks, -1, len(self.bags), self._dim).transpose(0, 1).flatten(1, 2)
        )

    def tables(self) -> list[Tensor]:
        """Return the tables of this rank."""
        return [bag.weight for bag in self.bags]  # type: ignore[misc]


class Fused(nn.Module):
    """weft's module, which steps in its backward pass."""

    def __init__(self, lookups: Lookups, rank: int, num_ranks: int) -> None:
        import weft.torch

        super().__init__()
        del rank
        holder = [r for r in range(num_ranks) for _ in lookups.held(r, num_ranks)]
        shapes = [(lookups.rows, lookups.dim)] * lookups.tables
        self.bag = weft.torch.EmbeddingAllToAll(
            shapes,
            sharding=[weft.torch.table_wise(r) for r in holder],
            optimizer=weft.torch.SGD(_RATE),
        )
        self._shape = (-1, lookups.tables, lookups.dim)
        self.optimizer = None

    def forward(self, bags: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return (samples, tables, dim)."""
        rows: Tensor = self.bag([i for i, _ in bags], [o for _, o in bags])
        return rows.view(self._shape)

    def tables(self) -> list[Tensor]:
        """Return the tables of this rank."""
        return list(self.bag.weights.values())


class Dlrm(LookupRunner):
    """Steps of training: dense layers by DDP, tables on the ranks that hold them."""

    def __init__(self, lookups: Lookups, rank: int, num_ranks: int, *, fused: bool) -> None:
        super().__init__(lookups, rank, num_ranks)
        self._held = lookups.held(rank, num_ranks)
        self._embedding = (Fused if fused else Serial)(lookups, rank, num_ranks)
        torch.manual_seed(0)
        dense = Dense(lookups.tables, (64, lookups.dim), (64, 1))
        self._first = [parameter.detach().clone() for parameter in dense.parameters()]
        self._dense = DistributedDataParallel(dense)
        self._optimizer = torch.optim.SGD(self._dense.parameters(), lr=_RATE)
        generator = torch.Generator().manual_seed(rank)
        samples = lookups.batch // num_ranks
        self._numbers = torch.rand(samples, NUMBERS, generator=generator)
        self._clicks = (self._numbers[:, 0] > self._numbers[:, 1]).float()

    def rows(self, bags: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Train one step; return its loss."""
        logits = self._dense(self._numbers, self._embedding(bags))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, self._clicks)
        self._optimizer.zero_grad()
        if self._embedding.optimizer is not None:
            self._embedding.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self._embedding.optimizer is not None:
            self._embedding.optimizer.step()
        return loss.detach()

    def reset(self) -> None:
        """Begin again, with the weights of the beginning."""
        with torch.no_grad():
            for parameter, first in zip(self._dense.parameters(), self._first, strict=True):
                parameter.copy_(first)
            for weight, table in zip(self._embedding.tables(), self._held, strict=True):
                weight.copy_(torch.from_numpy(self.lookups.values(table)) * _SCALE)

    def step(self, number: int) -> float:
        """Train one step with the set of indices of that number; return its loss."""
        return float(self.rows(self.turns[number % len(self.turns)]))

    def answer(self) -> Any:
        """Return the losses of the first steps."""
        self.reset()
        return [self.step(number) for number in range(_CHECKED)]
