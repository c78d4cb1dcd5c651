"""What one forward pass of a batch takes: prompts and single tokens together, over tp ranks.

The kernels and collectives of a pass wait for each other, so alone it takes their sum; next to a
kernel that copies it is a step on the engine that all steps run on. Layers of one kind (experts or
none, a window or none) take the same. The host launches one graph and nothing more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from weft.collectives import collective, engine_algorithms
from weft.errors import UnknownNameError, UsageError, nearest
from weft.fused import Sliced, apart_all_reduce, fused_all_reduce
from weft.models.transformer import Piece
from weft.models.transformer_step import build
from weft.planner.prices import Prices, default_library
from weft.schedule import Cost
from weft.schedule.values import Group
from weft.simulator import collective_units, simulate
from weft.step import NO_HOST, Collective, Execution, Op, StepEngine

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.models.transformer import LayerKind, Transformer
    from weft.step import StepGraph, StepRun

# How sums over the ranks of a layer are made: by a library's kernel; gathered by engines and
# added up by a kernel; in the kernel of the product itself; by the fastest of them.
REDUCTIONS = ("library", "dma", "fused", "auto")
_SLICES = (8, 4, 2, 1)  # of a fused product, for each rank
_COPIER = "copy of blocks"  # a stream of its own


class _Copy(NamedTuple):
    """A kernel that copies blocks into memory: what it holds, for how long, bytes a second."""

    units: int
    seconds: float
    rate: float


@dataclass
class Forward:
    """Prices forward passes of a model on the ranks of a platform."""

    model: Transformer
    platform: Platform
    reduction: str = "library"
    library: str = ""  # of collectives: a server's, or that of the platform
    experts: float = 1.0  # what kernels of experts take over the measured ones
    prices: Prices = field(init=False)
    _known: dict[tuple[Piece, ...], float] = field(default_factory=dict)
    _ends: dict[tuple[int, int], float] = field(default_factory=dict)
    _sums: dict[tuple[object, ...], float] = field(default_factory=dict)
    _slowdowns: dict[tuple[object, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            message = f"unknown reduction of ranks {self.reduction!r}"
            raise UnknownNameError(message, nearest(self.reduction, REDUCTIONS))
        if self.reduction in ("dma", "fused") and self.platform.num_nodes > 1:
            raise UsageError(
                f"sums by {self.reduction} stay inside a node, {self.platform.name} has several",
                f"Use at most {self.platform.node_size} ranks for tp, or --reduce library.",
            )
        self.prices = Prices(self.platform, self.library or default_library(self.platform))

    def seconds(self, pieces: tuple[Piece, ...]) -> float:
        """Return what a pass over these pieces takes.

        Decoding reads every key once, so a pass is linear in the context of single tokens: it is
        priced at powers of two and interpolated between them.
        """
        for n, each in enumerate(pieces):
            low = 1 << max(0, each.keys.bit_length() - 1)
            if each.queries == 1 and each.keys > low:
                share = each.keys / low - 1.0
                ends = [replace(each, keys=keys) for keys in (low, 2 * low)]
                first, last = (self.seconds((*pieces[:n], end, *pieces[n + 1 :])) for end in ends)
                return (1.0 - share) * first + share * last
        if pieces not in self._known:
            total = around = self._ends_of_pass(pieces)
            for kind, count in Counter(self.model.kinds).items():
                total += count * (self._alone(pieces, 1, kind) - around)
            self._known[pieces] = total
        return self._known[pieces]

    def slowdown(self, pieces: tuple[Piece, ...], units: int, rate: float) -> float:
        """Return how many times as long a pass takes next to a kernel that copies blocks in.

        The kernel holds ``units`` and writes ``rate`` bytes a second, all the time.
        """
        if not units:
            return 1.0
        key = pieces, units
        if key not in self._slowdowns:
            kind = self.model.kinds[-1]
            alone = self._alone(pieces, 1, kind)
            copy = _Copy(units, 2 * alone, rate)
            self._slowdowns[key] = self._end_of_pass(self._run(pieces, kind, copy)) / alone
        return self._slowdowns[key]

    def _ends_of_pass(self, pieces: tuple[Piece, ...]) -> float:
        """Return what a pass takes besides its layers, which only its numbers of tokens decide."""
        counted = [(each.count * each.queries, each.count) for each in pieces]
        tokens, scored = map(sum, zip(*counted, strict=True))
        if (tokens, scored) not in self._ends:
            kind = self.model.kinds[0]
            one, two = (self._alone(pieces, layers, kind) for layers in (1, 2))
            self._ends[tokens, scored] = 2 * one - two
        return self._ends[tokens, scored]

    def _alone(self, pieces: tuple[Piece, ...], layers: int, kind: LayerKind) -> float:
        """Sum up the launch and the ops of a pass over layers of one kind."""
        launch = self.platform.require_device().host_launch
        graph, executions = self._laid_out(pieces, layers, kind)
        costs = (op.cost for op in graph.steps[0].ops)
        kernels = sum(self.prices.kernel(cost) for cost in costs if cost is not None)
        return launch + kernels + sum(each.seconds for each in executions.values())

    def _run(self, pieces: tuple[Piece, ...], kind: LayerKind, copy: _Copy) -> StepRun:
        """Simulate a pass over one layer, with a kernel that copies on another stream."""
        graph, executions = self._laid_out(pieces, 1, kind)
        (step,) = graph.steps
        what = Collective("broadcast", max(1, round(copy.rate * copy.seconds)), group=_COPIER)
        op = Op(_COPIER, "collective", _COPIER, collective=what, seconds=copy.seconds)
        graph = replace(
            graph,
            steps=(replace(step, ops=(*step.ops, op)),),
            groups={**graph.groups, _COPIER: Group(1)},
        )
        executions[0, len(step.ops)] = Execution(copy.seconds, copy.units)
        return StepEngine(graph, self.platform, self.prices, host=NO_HOST).run(executions)

    def _laid_out(
        self, pieces: tuple[Piece, ...], layers: int, kind: LayerKind
    ) -> tuple[StepGraph, dict[tuple[int, int], Execution]]:
        """Build a pass over layers of one kind, and price its collectives."""
        model = replace(
            self.model,
            layers=layers,
            dense_layers=0 if kind.experts else layers,
            moe_every=1,
            window=0 if kind.full else self.model.window,
            full_every=0,
            mode="prefill",
            flash=True,  # servers have a kernel of their own for each kind of piece
            batch=self._replicas,
        )
        graph = build("pass", model, self.platform.num_ranks, pieces)
        (step,) = graph.steps
        if self.experts != 1.0:
            step = replace(step, ops=tuple(map(self._scaled, step.ops)))
            graph = replace(graph, steps=(step,))
        executions = {
            (0, n): Execution(self._collective_seconds(op.collective, step.ops[n - 1], graph))
            for n, op in enumerate(step.ops)
            if op.collective is not None
        }
        return graph, executions

    def _scaled(self, op: Op) -> Op:
        """Scale kernels of experts to those of the server."""
        if op.cost is None or op.cost.family != "moe":
            return op
        return replace(op, cost=replace(op.cost, scale=self.experts))

    @staticmethod
    def _end_of_pass(run: StepRun) -> float:
        ops = run.engine.graph.steps[0].ops
        return max(run.span((0, n))[1] for n, op in enumerate(ops) if op.stream != _COPIER)

    @property
    def _replicas(self) -> int:
        return self.platform.num_ranks // self.model.tp

    def _collective_seconds(self, what: Collective, before: Op, graph: StepGraph) -> float:
        ranks = graph.members(what.group, 0)
        if what.kind == "all_reduce":
            return self._reduced(what, ranks, before)
        return self._exchanged(what, ranks)

    def _reduced(self, what: Collective, ranks: tuple[int, ...], before: Op) -> float:
        """Sum over ranks, as the reduction says; a product that stands before may take part."""
        product = before.cost
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
