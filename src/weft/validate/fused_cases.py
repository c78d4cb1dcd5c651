"""The configurations that fused operators are priced on.

Written down before any of them was priced, and not changed since. The published study names its
operators, not all its shapes, so these are shapes of models that use such operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from weft.fused import Sliced
from weft.schedule import Cost

SLICES = 8  # for each rank


@dataclass(frozen=True, slots=True)
class Embedding:
    """Lookups of one rank: its tables, for the samples of all ranks."""

    batch: int
    tables: int
    dim: int
    pooling: int

    def sliced(self, num_ranks: int, slices: int = SLICES) -> Sliced:
        """Rows are read, 64-bit indices beside them, and their sums are written, in float32."""
        bags = self.batch * self.tables
        traffic = bags * (self.pooling * (4 * self.dim + 8) + 4 * self.dim)
        cost = Cost("embedding", dtype="float32", nbytes=traffic)
        return Sliced("embedding", num_ranks, slices, cost, bags * self.dim * 4)


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


@dataclass(frozen=True, slots=True)
class Dlrm:
    """A step of a recommendation model: MLPs on every rank, tables shared out among them."""

    batch: int = 512  # of each rank
    tables: int = 13  # of each rank
    dim: int = 128
    pooling: int = 20
    bottom: tuple[int, ...] = (512, 1024, 256, 128)
    top: tuple[int, ...] = (1024, 512, 256, 1)

    def embedding(self, num_ranks: int) -> Embedding:
        """Its lookups."""
        return Embedding(self.batch * num_ranks, self.tables, self.dim, self.pooling)

    def weights(self) -> int:
        """How many weights the MLPs have."""
        return sum(a * b for layers in (self.bottom, self.top) for a, b in zip(layers, layers[1:]))


DLRM = Dlrm()  # widths and tables of the published DLRM tasks, arXiv 2404.12674
