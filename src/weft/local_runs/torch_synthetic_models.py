"""Small models as users write them: the dense part of a DLRM, and transformers."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.local_runs import synthetic_models

NUMBERS = 13  # numeric features, as in Criteo


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
