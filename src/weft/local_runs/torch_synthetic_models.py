"""Small models as users write them, and one training step of each.

The step is the same whether it is run or captured on fake tensors: it needs only the process group
of its rank.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
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
from weft.models.tables import Table, table_wise

NUMBERS = 13  # numeric features, as in Criteo
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


class Dense(nn.Module):
    """The dense part: bottom MLP, pairwise products of vectors, top MLP."""

    def __init__(self, tables: int, bottom: tuple[int, ...], top: tuple[int, ...]) -> None:
        super().__init__()
        vectors = tables + 1
        self._bottom = _mlp((NUMBERS, *bottom))
        self._pairs: Tensor
        pairs = torch.tensor(
            [i * vectors + j for i in range(vectors) for j in range(i + 1, vectors)]
        )
        self.register_buffer("_pairs", pairs, persistent=False)
        self._top = _mlp((bottom[-1] + len(pairs), *top))[:-1]

    def forward(self, numbers: Tensor, rows: Tensor) -> Tensor:
        """Return one logit per sample; ``rows`` has one vector per table."""
        below = self._bottom(numbers)
        vectors = torch.cat([below.unsqueeze(1), rows], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        chosen = products.index_select(1, self._pairs)
        logits: Tensor = self._top(torch.cat([below, chosen], 1)).squeeze(1)
        return logits


def _mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def _lookups(
    model: synthetic_models.SyntheticDlrm, tables: list[int]
) -> list[list[tuple[Tensor, Tensor]]]:
    drawn = np.random.default_rng(model.seed)
    popular = [model.tables[table] for table in tables]
    return [
        [
            (
                random_rows(rows, model.batch * pooling, zipf, drawn),
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


class Attention(nn.Module):
    """Multi-head attention; ``llama`` uses rotary embeddings and grouped keys."""

    def __init__(self, model: synthetic_models.SyntheticTransformer) -> None:
        super().__init__()
        self._head, self._kind = model.hidden // model.heads, model.model
        kv_heads, bias = model.kv_heads or model.heads, model.model != "llama"
        self._widths = [model.hidden, kv_heads * self._head, kv_heads * self._head]
        self._qkv = nn.Linear(model.hidden, sum(self._widths), bias=bias)
        self._out = nn.Linear(model.hidden, model.hidden, bias=bias)

    def forward(self, x: Tensor, turned: tuple[Tensor, Tensor] | None) -> Tensor:
        """Apply it to (sequences, tokens, hidden)."""
        q, k, v = (
            each.unflatten(-1, (-1, self._head)).transpose(1, 2)
            for each in self._qkv(x).split(self._widths, -1)
        )
        if turned is not None:
            q, k = _turned(q, *turned), _turned(k, *turned)
        seen = functional.scaled_dot_product_attention(
            q, k, v, is_causal=self._kind != "bert", enable_gqa=self._kind == "llama"
        )
        result: Tensor = self._out(seen.transpose(1, 2).flatten(-2))
        return result


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat([-two, one], -1) * sin


class TransformerBlock(nn.Module):
    """One layer: norms before (GPT-2, LLaMA) or after (BERT)."""

    def __init__(self, model: synthetic_models.SyntheticTransformer) -> None:
        super().__init__()
        self._kind, gated = model.model, model.model == "llama"
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self._first, self._second = norm(model.hidden), norm(model.hidden)
        self._attention = Attention(model)
        self._up = nn.Linear(model.hidden, model.ffn, bias=not gated)
        self._gate = nn.Linear(model.hidden, model.ffn, bias=False) if gated else None
        self._down = nn.Linear(model.ffn, model.hidden, bias=not gated)

    def _inner(self, x: Tensor) -> Tensor:
        if self._gate is not None:
            result: Tensor = self._down(functional.silu(self._gate(x)) * self._up(x))
            return result
        how = "tanh" if self._kind == "gpt2" else "none"
        inner: Tensor = self._down(functional.gelu(self._up(x), approximate=how))
        return inner

    def forward(self, x: Tensor, turned: tuple[Tensor, Tensor] | None) -> Tensor:
        """Run the layer."""
        if self._kind == "bert":
            x = self._first(x + self._attention(x, turned))
            result: Tensor = self._second(x + self._inner(x))
            return result
        x = x + self._attention(self._first(x), turned)
        return x + self._inner(self._second(x))


class TorchTransformer(nn.Module):
    """Embeddings, layers, norm and head."""

    def __init__(self, model: synthetic_models.SyntheticTransformer) -> None:
        super().__init__()
        self._kind = model.model
        self._angles: Tensor
        self._tokens = nn.Embedding(model.vocab, model.hidden)
        rotary = model.model == "llama"
        self._places = None if rotary else nn.Parameter(torch.zeros(model.seq, model.hidden))
        self._layers = nn.ModuleList(TransformerBlock(model) for _ in range(model.layers))
        self._norm = (nn.RMSNorm if rotary else nn.LayerNorm)(model.hidden)
        self._head = nn.Linear(model.hidden, model.vocab, bias=False)
        half = model.hidden // model.heads // 2
        angles = torch.arange(model.seq)[:, None] * 1e4 ** (-torch.arange(half) / half)
        self.register_buffer("_angles", torch.cat([angles, angles], -1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of every token."""
        x = self._tokens(tokens)
        turned = None
        if self._places is not None:
            x = x + self._places
        else:
            turned = self._angles.cos(), self._angles.sin()
        for layer in self._layers:
            x = layer(x, turned)
        scores: Tensor = self._head(self._norm(x))
        return scores


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
