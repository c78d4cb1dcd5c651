"""A small reference model: the time of its step beyond its ops is overhead.

It has attention and many small ops: of a few large ones a hundredth of their time looks like much
overhead of an op. It touches more than the caches hold, as models do that people train: of a
smaller one everything counts as cached, and what it takes to get data from the last cache looks
like overhead (20 us an op of the forward pass instead of 5 to 12). It is never predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Phases = dict[str, Callable[[], Any]]


class ReferenceBlock(nn.Module):
    """Attention and an inner layer, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run it on (sequences, tokens, width)."""
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        inner: Tensor = self.down(functional.gelu(self.up(self.norms[1](x))))
        return x + inner


class ReferenceModel(nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(self, width: int, heads: int, depth: int, vocab: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        self.blocks = nn.Sequential(*(ReferenceBlock(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Run them and give a loss."""
        scores = self.head(self.blocks(self.table(tokens)))
        return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def reference_step() -> Phases:
    """Return the phases of a step of the model."""
    model = ReferenceModel(128, 4, 3, 2048)
    given = torch.randint(0, 2048, (8, 64))
    return _phases(model, given, torch.optim.AdamW(model.parameters(), lr=1e-5))


def _phases(model: nn.Module, given: Tensor, optimizer: torch.optim.Optimizer) -> Phases:
    loss: list[Tensor] = []

    def forward() -> None:
        optimizer.zero_grad()
        loss[:] = [model(given)]

    def backward() -> None:
        loss[0].backward()  # type: ignore[no-untyped-call]

    return {"forward": forward, "backward": backward, "optimizer": optimizer.step}
