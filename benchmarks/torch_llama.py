"""LLaMA with FSDP2 as its users write it: what the benchmarks of capturing capture."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from weft.hardware import platform
from weft.planner.predict import predict
from weft.torch.capture.capture_step import capture

_SIZES = {8: (4096, 32, 32, 14336), 70: (8192, 80, 64, 28672)}  # hidden, layers, heads, inner
_VOCAB, _KV_HEADS = 128256, 8


class Block(nn.Module):
    """One layer: attention with shared keys, then the gated MLP."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.head = heads, hidden // heads
        self.before, self.between = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, _KV_HEADS * self.head, bias=False)
        self.value = nn.Linear(hidden, _KV_HEADS * self.head, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layer."""
        y = self.before(x)
        q, k, v = (
            each(y).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        y = self.between(x)
        result: torch.Tensor = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return result


class Llama(nn.Module):
    """Embedding, layers, norm and head."""

    def __init__(self, size: int) -> None:
        super().__init__()
        hidden, layers, heads, inner = _SIZES[size]
        self.embedding = nn.Embedding(_VOCAB, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, _VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of every token."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


def training(size: int) -> Callable[[], None]:
    """Prepare a model sharded over all ranks, and give one step of its training."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = Llama(size).to(torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, _VOCAB, (1, 4096), device="cuda")

    def step() -> None:
        scores = model(tokens).float()
        loss: Any = nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def capture_step(size: int, num_ranks: int) -> int:
    """Capture one step, and give the number of its ops."""
    return len(capture(lambda: training(size), num_ranks).steps[0].ops)


def predict_step(size: int, num_ranks: int) -> dict[str, Any]:
    """Capture one step, then return the duration of its prediction."""
    graph = capture(lambda: training(size), num_ranks)
    machine = platform(f"h100-8x{num_ranks // 8}")
    begin, cpu = time.perf_counter(), time.process_time()
    found = predict(graph, machine, anyway=True)
    return {
        "seconds": time.perf_counter() - begin,
        "cpu": time.process_time() - cpu,
        "step": found.seconds,
        "ops": len(graph.steps[0].ops),
    }
