"""What one forward pass of a batch takes: prompts and single tokens together, over tp ranks.

The ops of a pass stand one behind the other: what a layer sums over its ranks is needed by the
next. So its time is the sum of theirs, and every layer takes the same. Nothing is added for the
host, which replays a graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from weft.c3 import Gemm, without_units
from weft.collectives import collective, engine_algorithms
from weft.errors import UnknownNameError, UsageError, nearest
from weft.fused import Sliced, apart_all_reduce, fused_all_reduce
from weft.models.transformer import Piece
from weft.models.transformer_step import build
from weft.planner.prices import Prices
from weft.schedule import Cost
from weft.simulator import collective_units, simulate

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.models.transformer import Transformer
    from weft.workload import Collective, Op, Workload

# How sums over the ranks of a layer are made: by a library's kernel; gathered by engines and
# added up by a kernel; in the kernel of the product itself; by the fastest of them.
REDUCTIONS = ("library", "dma", "fused", "auto")
_SLICES = (8, 4, 2, 1)  # of a fused product, for each rank


@dataclass
class Forward:
    """Prices forward passes of a model on the ranks of a platform."""

    model: Transformer
    platform: Platform
    reduction: str = "library"
    prices: Prices = field(init=False)
    _known: dict[tuple[Piece, ...], float] = field(default_factory=dict)
    _sums: dict[tuple[object, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            message = f"no way to sum over ranks is called {self.reduction!r}"
            raise UnknownNameError(message, nearest(self.reduction, REDUCTIONS))
        if self.reduction in ("dma", "fused") and self.platform.num_nodes > 1:
            raise UsageError(
                f"sums by {self.reduction} stay inside a node, {self.platform.name} has several",
                f"Use at most {self.platform.node_size} ranks for tp, or --reduce library.",
            )
        self.prices = Prices(self.platform)

    def seconds(self, pieces: tuple[Piece, ...]) -> float:
        """Return what a pass over these pieces takes."""
        if pieces not in self._known:
            one, two = (self._sum(pieces, layers) for layers in (1, 2))
            self._known[pieces] = one + (self.model.layers - 1) * (two - one)
        return self._known[pieces]

    def slowed(self, tokens: int, units: int) -> float:
        """By how much a pass is slower without so many units: by the largest of its products."""
        if not units:
            return 1.0
        model = self.model
        width = model.ffn * (2 if model.gated else 1) // model.tp
        gemm, device = (
            Gemm(tokens, width, model.hidden, _math(model)),
            self.platform.require_device(),
        )
        return max(1.0, without_units(gemm, units, device) / without_units(gemm, 0, device))

    def _sum(self, pieces: tuple[Piece, ...], layers: int) -> float:
        model = replace(self.model, layers=layers, mode="prefill", batch=self._replicas)
        workload = build("pass", model, self.platform.num_ranks, pieces)
        (step,) = workload.steps
        total, before = 0.0, None
        for op in step.ops:
            total += self._op(op, before, workload)
            before = op
        return total

    @property
    def _replicas(self) -> int:
        return self.platform.num_ranks // self.model.tp

    def _op(self, op: Op, before: Op | None, workload: Workload) -> float:
        if op.cost is not None:
            return self.prices.kernel(op.cost)
        assert op.collective is not None
        ranks = workload.members(op.collective.group, 0)
        if op.collective.kind == "all_reduce":
            return self._reduced(op.collective, ranks, before)
        return self._exchanged(op.collective, ranks)

    def _reduced(self, what: Collective, ranks: tuple[int, ...], before: Op | None) -> float:
        """Sum over ranks, as the reduction says; a product that stands before may take part."""
        product = before.cost if before is not None and before.cost is not None else None
        key = what.nbytes, product
        if key not in self._sums:
            library = self.prices.collective(what, ranks)
            asked = ("dma", "fused") if self.reduction == "auto" else (self.reduction,)
            found = [library] if self.reduction in ("library", "auto") else []
            if "dma" in asked and self._engines_do("all_gather"):
                found.append(self._gathered(what, len(ranks)))
            if "fused" in asked:
                found.append(self._fused(what, len(ranks), product, library))
            self._sums[key] = min(found, default=library)
        return self._sums[key]

    def _exchanged(self, what: Collective, ranks: tuple[int, ...]) -> float:
        """Exchange by a library, or by engines where that is asked for and they can."""
        library = self.prices.collective(what, ranks)
        if self.reduction not in ("dma", "auto") or not self._engines_do(what.kind):
            return library
        if what.kind not in ("all_gather", "all_to_all"):
            return library
        engines = self._by_engines(what.kind, what.nbytes, len(ranks))
        return min(library, engines) if self.reduction == "auto" else engines

    def _engines_do(self, kind: str) -> bool:
        refused = self.platform.require_device().engine_refusal(kind)
        return not refused and self.platform.num_nodes == 1

    def _gathered(self, what: Collective, num_ranks: int) -> float:
        """Engines cannot add: they bring all summands to all ranks, a kernel adds them up."""
        gathered = self._by_engines("all_gather", what.nbytes * num_ranks, num_ranks)
        added = Cost("elementwise", dtype=what.dtype, nbytes=(num_ranks + 1) * what.nbytes)
        return gathered + self.prices.kernel(added)

    def _by_engines(self, kind: str, nbytes: int, num_ranks: int) -> float:
        """Take the fastest variant; a step of a graph is known long before, so ahead of time."""
        key = kind, nbytes, num_ranks
        if key not in self._sums:
            machine = self.platform.resized(num_ranks)
            whole = -(-nbytes // num_ranks) * num_ranks
            found = []
            for name in engine_algorithms(kind, machine.require_device()):
                schedule = collective(kind, name, num_ranks=num_ranks, nbytes=whole)
                found.append(simulate(schedule, machine).seconds)
            self._sums[key] = min(found)
        return self._sums[key]

    def _fused(
        self, what: Collective, num_ranks: int, product: Cost | None, library: float
    ) -> float:
        """Return what is left of the sum when the product's own kernel sends its slices.

        Both are simulated, in one kernel and one after the other; what that saves of the pair is
        taken off its price.
        """
        if product is None or product.family != "gemm":
            return library
        whole = Cost("gemm", (), product.dtype, product.flops, product.nbytes)
        for slices in _SLICES:
            if what.nbytes % (num_ranks * slices) == 0:
                break
        else:
            return library
        machine = self.platform.resized(num_ranks)
        work = Sliced("product", num_ranks, slices, whole, what.nbytes)
        fused = fused_all_reduce(work, units=machine.require_device().units)
        apart = apart_all_reduce(work, units=collective_units(machine, "all_reduce"))
        share = simulate(fused, machine).seconds / simulate(apart, machine).seconds
        alone = self.prices.kernel(product)
        return share * (alone + library) - alone


def _math(model: Transformer) -> str:
    return model.math or model.dtype
