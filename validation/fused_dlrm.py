"""A DLRM training step as a schedule, with fused or separate embedding lookups."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from weft.collectives import direct, ring
from weft.fused import Sliced, apart_all_to_all, fused_all_to_all
from weft.fused.operators import STREAM
from weft.schedule import (
    SELF,
    Buffer,
    Call,
    Cost,
    Flag,
    Group,
    Kernel,
    Program,
    Queue,
    Schedule,
    Signal,
    Wait,
)

if TYPE_CHECKING:
    from weft.schedule.values import Value


@dataclass(frozen=True, slots=True)
class Embedding:
    """The lookups of one rank: its tables, for the samples of all ranks."""

    batch: int
    tables: int
    dim: int
    pooling: int

    @property
    def nbytes(self) -> int:
        """The bytes of the pooled rows, in float32."""
        return self.batch * self.tables * self.dim * 4

    @property
    def cost(self) -> Cost:
        """The cost: rows and 64-bit indices are read, pooled rows are written."""
        indices = self.batch * self.tables * self.pooling * 8
        traffic = self.nbytes * (self.pooling + 1) + indices
        return Cost("embedding", dtype="float32", nbytes=traffic)

    def sliced(self, num_ranks: int, slices: int) -> Sliced:
        """Divide the pooled rows into slices for the ranks that own the samples."""
        return Sliced("embedding", num_ranks, slices, self.cost, self.nbytes)


@dataclass(frozen=True, slots=True)
class FusedDlrm:
    """MLPs on every rank, tables distributed over the ranks; ``batch`` and ``tables`` per rank."""

    batch: int
    tables: int
    dim: int
    pooling: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    features: int  # vectors of a sample that interact; more tables are shards of these

    def embedding(self, num_ranks: int) -> Embedding:
        """Return the lookups of one rank."""
        return Embedding(self.batch * num_ranks, self.tables, self.dim, self.pooling)

    @property
    def num_weights(self) -> int:
        """The number of weights of the MLPs."""
        return sum(a * b for layers in (self.bottom, self.top) for a, b in pairwise(layers))

    def mlp(self, name: str, layers: tuple[int, ...], passes: int) -> Kernel:
        """Return the matrix products of an MLP: one pass forward, two passes backward."""
        weights = sum(a * b for a, b in pairwise(layers))
        cost = Cost(
            "gemm",
            dtype="fp32",
            flops=2.0 * passes * self.batch * weights,
            nbytes=4 * passes * (weights + self.batch * sum(layers)),
        )
        return Kernel(name, cost)

    def interaction(self, name: str, num_ranks: int, passes: int) -> Kernel:
        """Return the pairwise products of a sample's vectors; all pooled rows are read."""
        flops = float(passes) * self.batch * self.features**2 * self.dim
        traffic = 4 * passes * self.batch * (self.tables * num_ranks + 1) * self.dim
        return Kernel(name, Cost("interaction", dtype="fp32", flops=flops, nbytes=traffic))


def dlrm_step(
    model: FusedDlrm, num_ranks: int, *, units: int | None, slices: int = 1, occupancy: float = 1.0
) -> Schedule:
    """Build forward, backward and update. ``units`` are those of a fused kernel; None: not fused.

    MLP gradients are reduced concurrently with the backward exchange, on their own stream.
    """
    group, lookups = Group(num_ranks), model.embedding(num_ranks)
    work = lookups.sliced(num_ranks, slices)
    if units is None:
        exchange = apart_all_to_all(work)
        forward: tuple[tuple[str, str, Value], ...] = (("in", "pooled", 0), ("out", "features", 0))
    else:
        exchange = fused_all_to_all(work, units=units, occupancy=occupancy)
        forward = (("out", "features", 0),)
    back = direct.all_to_all(num_ranks, work.nbytes)
    reduced = -(-model.num_weights // num_ranks) * num_ranks * 4  # padded to equal parts
    sums = ring.all_reduce(num_ranks, reduced, dtype="float32")
    update = Cost("embedding_backward", dtype="float32", nbytes=2 * lookups.cost.nbytes)
    compute = (
        model.mlp("bottom", model.bottom, 1),
        Call("lookups", exchange, group, forward),
        model.interaction("interaction", num_ranks, 1),
        model.mlp("top", model.top, 1),
        model.mlp("top backward", model.top, 2),
        model.interaction("interaction backward", num_ranks, 2),
        model.mlp("bottom backward", model.bottom, 2),
        Signal(Flag(SELF, 0)),
        Call("gradients", back, group, (("in", "features", 0), ("out", "pooled", 0))),
        Kernel("update", update),
    )
    concurrent = (Wait(Flag(SELF, 0)), Call("sums", sums, group, (("data", "mlp", 0),)))
    queues = (Queue(STREAM, compute), Queue("stream1", concurrent))
    buffers = (
        Buffer("pooled", work.nbytes),
        Buffer("features", work.nbytes),
        Buffer("mlp", reduced, "inout"),
    )
    kind = "apart" if units is None else "fused"
    program = Program(range(num_ranks), queues)
    return Schedule(f"dlrm step, lookups {kind}", num_ranks, (program,), buffers, 1)
