"""The configurations that fused operators are priced on.

Written down before any of them was priced, and not changed since. The published study names its
operators, not all its shapes, so these are shapes of models that use such operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from validation.fused_dlrm import Embedding, FusedDlrm
from weft.fused import Sliced
from weft.schedule import Cost

SLICES = 8  # for each rank


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product of one rank, in bfloat16."""

    name: str
    m: int
    n: int
    k: int

    def sliced(self, num_ranks: int, slices: int = SLICES) -> Sliced:
        """Cut the result into slices."""
        m, n, k = self.m, self.n, self.k
        traffic = 2 * (m * k + k * n + m * n)
        shape = (m, n, k) if m > 1 else ()  # a vector is no grid of tiles: its weights stream by
        cost = Cost("gemm", shape, "bf16", flops=2.0 * m * n * k, nbytes=traffic)
        return Sliced(self.name, num_ranks, slices, cost, 2 * m * n)


EMBEDDINGS = tuple(
    Embedding(batch, tables, dim, pooling)
    for batch, tables, dim, pooling in product(
        (512, 2048, 8192), (16, 64), (64, 128, 256), (10, 25, 50, 70)
    )
)

# The layers of a decoder whose results are added up over 4 ranks: after attention, after the MLP.
_LLAMA = {"7b": (4096, 11008), "13b": (5120, 13824), "65b": (8192, 22016), "70b": (8192, 28672)}
GEMVS = tuple(
    Product(f"llama-{size} {layer}", 1, hidden, width // 4)
    for size, (hidden, wide) in _LLAMA.items()
    for layer, width in (("attention", hidden), ("mlp", wide))
)

# The second product of the experts on a rank, two experts for each token of 4 ranks.
_MIXTRAL = {"8x7b": (4096, 14336), "8x22b": (6144, 16384)}
COMBINES = tuple(
    Product(f"mixtral-{size} {tokens} tokens", 2 * tokens, hidden, wide)
    for size, (hidden, wide) in _MIXTRAL.items()
    for tokens in (512, 1024, 2048, 4096)
)


# Widths, dimension, tables and pooling of the published DLRM tasks, arXiv 2404.12674.
DLRM = FusedDlrm(
    batch=512,
    tables=13,
    dim=128,
    pooling=20,
    bottom=(512, 1024, 256, 128),
    top=(1024, 512, 256, 1),
    features=4 * 13 + 1,
)
