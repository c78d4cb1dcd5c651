"""Which layout trains a transformer fastest on so many ranks: enumerate, bound, refine.

```
 layouts that divide -> those that fit into memory -> ranked by an estimate -> the best predicted
```

The estimate adds up what one layer takes by the step engine, the bubble of the pipeline, and
communication of weights and gradients that computation cannot hide. It only ranks: every number
that is shown comes from the prediction of the whole step.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.errors import NoPlanError, UsageError
from weft.hardware.dtypes import item_bytes
from weft.models.transformer import Transformer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import fullest_memory
from weft.models.transformer_step import build
from weft.planner.job_prediction import predict_job
from weft.planner.prices import Prices, default_library
from weft.step import StepEngine
from weft.step.step_graph import Collective
from weft.units import format_size

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.models.job import Job
    from weft.planner.predict import Prediction
    from weft.step import HostModel

SEARCHED = ("tp", "cp", "pp", "interleave", "ep", "zero", "micro_batch", "recompute")
_MICRO = (1, 2, 4, 8)
_RECOMPUTE = ("none", "selective", "full")
_OPTIMIZER_BYTES = 28  # of a weight that AdamW reads and writes
_LONG = 8192  # tokens of a sequence from which on sharing it out is tried


@dataclass(frozen=True)
class LayoutChoice:
    """One layout of a job with its predicted step."""

    job: Job
    prediction: Prediction

    @property
    def seconds(self) -> float:
        """What the step takes."""
        return self.prediction.seconds

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the search chose, those of one rank left out."""
        model = self.job.model
        found = {name: getattr(model, name) for name in (*SEARCHED, "sp", "count_ends")}
        usual = {"zero": 0, "recompute": "none", "micro_batch": 0, "sp": False, "count_ends": False}
        return {key: value for key, value in found.items() if value != usual.get(key, 1)}

    def as_row(self, peak: float, gpu_hour: float = 0.0) -> dict[str, Any]:
        """Return it as programs read it; ``peak`` is the rated flop/s of a rank."""
        memory = self.prediction.graph.memory
        layout = Layout(self.job.model, self.job.num_ranks)  # type: ignore[arg-type]
        return {
            "settings": {**self.settings, "dp": layout.dp},
            "seconds": self.seconds,
            "low": self.prediction.low,
            "high": self.prediction.high,
            "exposed": self.prediction.breakdown["exposed"],
            "memory": 0 if memory is None else memory.total,
            **self.job.throughput(self.seconds, peak, gpu_hour),
            "basis": "predicted",
        }


def _choice(
    platform: Platform, host: HostModel | None, job: Job, prices: Prices | None = None
) -> LayoutChoice:
    prediction = predict_job(job, platform, host=host, prices=prices, brief=True)
    return LayoutChoice(job, prediction)


@dataclass
class LayoutSearch:
    """Searches the layouts of one job; settings that were ``given`` are kept as they are."""

    job: Job
    platform: Platform
    given: frozenset[str] = frozenset()
    host: HostModel | None = None
    num_layouts: int = 0  # that divide
    num_fitting: int = 0
    _layers: dict[object, float] = field(default_factory=dict)

    def best(self, count: int = 10, refined: int = 12, *, cores: int = 1) -> list[LayoutChoice]:
        """Return the fastest layouts that fit, predicted; ``refined`` of them are looked at.

        With several ``cores`` processes share them: a program that asks for it must have its main
        module guarded, as ``multiprocessing`` says.
        """
        fitting = list(self._fitting())
        if not self.num_layouts:
            kept = " ".join(
                f"{key}={getattr(self.job.model, key)}"
                for key in sorted(self.given)
                if hasattr(self.job.model, key)
            )
            raise NoPlanError(
                f"no layout of {self.job.name} divides {self.platform.num_ranks} ranks with {kept}",
                "Change one of these settings, or leave it to the search.",
            )
        if not fitting:
            has = format_size(self.platform.require_device().memory_bytes)
            raise NoPlanError(
                f"none of {self.num_layouts} layouts of {self.job.name} fits into {has} a rank",
                "Use more ranks, or leave more settings to the search.",
            )
        prices = Prices(self.platform, default_library(self.platform))
        ranked = sorted(fitting, key=lambda model: self.estimate(model, prices))
        jobs = [replace(self.job, model=model) for model in ranked[:refined]]
        if cores > 1 and len(jobs) > 1:
            # Forked from a server: this process may have threads.
            context = multiprocessing.get_context("forkserver")
            with ProcessPoolExecutor(min(cores, len(jobs)), context) as pool:
                found = list(pool.map(partial(_choice, self.platform, self.host), jobs))
        else:
            found = [_choice(self.platform, self.host, job, prices) for job in jobs]
        found.sort(key=lambda each: each.seconds)
        return found[:count]

    def own(self) -> LayoutChoice | None:
        """Return the layout that the job itself asks for, though it may not fit; None: none."""
        try:
            prediction = predict_job(
                self.job, self.platform, host=self.host, anyway=True, brief=True, ranged=False
            )
        except UsageError:
            return None
        return LayoutChoice(self.job, prediction)

    def _fitting(self) -> Iterator[Transformer]:
        """Yield the layouts that divide and whose fullest rank has room for them.

        Of layouts that differ in recomputation alone only the one that recomputes least is
        yielded: the others fit too, and are never faster.
        """
        room = self.platform.require_device().memory_bytes
        for shaped in self._layouts():
            fits, least = False, _least_bytes(shaped, self.platform.num_ranks)
            for recompute in self._values("recompute", list(_RECOMPUTE)):
                model = replace(shaped, recompute=recompute)
                try:
                    layout = Layout(model, self.platform.num_ranks)
                except UsageError:
                    break
                self.num_layouts += 1
                if least > room:
                    continue
                if not fits and fullest_memory(model, layout).total <= room:
                    fits = True
                    yield model
                self.num_fitting += fits

    def _layouts(self) -> Iterator[Transformer]:
        """Yield every combination of settings that were not given, but for recomputation."""
        model = self.job.model
        if not isinstance(model, Transformer) or model.mode != "train":
            raise UsageError(
                f"--search layout: {self.job.name} is no transformer that is trained",
                "Use a model of weft models, or a configuration file.",
            )
        node, ranks = self.platform.node_size, self.platform.num_ranks
        # Tensor parallelism sums activations twice a layer and pass: beyond a node the NICs bound
        # it.
        for tp in self._values("tp", _powers(min(node, model.heads))):
            for pp in self._values("pp", _stages(model.layers, ranks // tp)):
                for cp in self._values("cp", _powers(8) if model.seq >= _LONG else [1]):
                    if ranks % (tp * pp * cp):
                        continue
                    shaped = replace(model, tp=tp, pp=pp, cp=cp, sp=tp > 1, dp=0, fsdp=False)
                    yield from self._details(shaped)

    def _details(self, model: Transformer) -> Iterator[Transformer]:
        chunks = _chunks(model.layers, model.pp)
        experts = _powers(min(model.experts, 64)) if model.experts else [1]
        for interleave in self._values("interleave", chunks):
            for ep in self._values("ep", experts):
                for zero in self._stages_of_zero(model):
                    for micro in self._values("micro_batch", list(_MICRO)):
                        yield replace(
                            model,
                            count_ends=_counts_ends(model.layers, model.pp * interleave),
                            interleave=interleave,
                            ep=ep,
                            zero=zero,
                            micro_batch=micro,
                        )

    def _values(self, key: str, tried: list[Any]) -> list[Any]:
        return [getattr(self.job.model, key)] if key in self.given else tried

    def _stages_of_zero(self, model: Transformer) -> list[int]:
        """Return what ZeRO shares out; a job that asks for FSDP asks for stage 3."""
        asked = self.job.model
        if "zero" in self.given and isinstance(asked, Transformer):
            return [asked.zero_stage]
        # In a pipeline stage 3 would gather the weights again for each micro batch.
        return [3, 1] if model.pp == 1 else [1]

    # The estimate

    def estimate(self, model: Transformer, prices: Prices) -> float:
        """Return about how long a step takes, to rank layouts by."""
        layout = Layout(model, self.platform.num_ranks)
        each = self._layer(model, prices)
        layers = -(-model.layers // model.pp)
        weights = model.layer_weights(model.kinds[-1]).total
        replicas = tuple(range(0, layout.replicas * model.tp, model.tp))
        ends = self._ends(model, layout.micro)
        if model.zero == 3:
            item = 2 * weights
            gathered = prices.collective(Collective("all_gather", item), replicas)
            reduced = prices.collective(Collective("reduce_scatter", item), replicas)
            # Gathers of the forward and the backward pass and the reduce-scatter hide behind the
            # layer.
            each = max(each, 2 * gathered + reduced)
            shared = 0.0
        else:
            whole = Collective("all_reduce", 2 * weights * layers)
            # Assumed: gradients are summed during half of what the last micro batch takes.
            shared = max(0.0, prices.collective(whole, replicas) - layers * each / 2)
        # the last stage has the head, and a layer less where that counts as one
        slowest = max(layers * each, (layers - model.count_ends) * each + ends)
        busy = layout.num_micro * slowest
        # Bubble of the interleaved 1F1B schedule (arXiv 2104.04473): (p - 1) / (m v) of the busy
        # time.
        bubble = (model.pp - 1) / (layout.num_micro * model.interleave)
        held = model.parameters / (model.tp * model.pp * (layout.replicas if model.zero else 1))
        optimizer = _OPTIMIZER_BYTES * held / self.platform.require_device().memory_rate
        return busy * (1 + bubble) + shared + optimizer

    def _layer(self, model: Transformer, prices: Prices) -> float:
        """Return forward and backward pass of a layer for one micro batch, without replicas.

        What a second micro batch adds, of two layers and of four: sums of gradients and the
        optimizer are the same in both.
        """
        key = model.tp, model.cp, model.ep, model.micro_batch, model.recompute
        if key not in self._layers:
            ranks = model.tp * model.cp * max(1, model.ep // (model.cp if model.ep > 1 else 1))
            replicas = ranks // (model.tp * model.cp)
            found = []
            for layers in (2, 4):
                one = replace(
                    model,
                    layers=layers,
                    pp=1,
                    interleave=1,
                    zero=0,
                    stage_layers=(),
                    dense_layers=0,
                )
                runs = []
                for micro_batches in (1, 2):
                    batch = model.micro_batch * replicas * micro_batches
                    step = build("layer", replace(one, batch=batch), ranks)
                    engine = StepEngine(step, self.platform, prices, host=self.host)
                    runs.append(engine.run().seconds)
                found.append(runs[1] - runs[0])
            self._layers[key] = max(0.0, found[1] - found[0]) / 2
        return self._layers[key]

    def _ends(self, model: Transformer, micro: int) -> float:
        """Return what the head takes on the last stage."""
        # Two flops a weight and token in the forward pass, four in the backward pass.
        flops = 6.0 * micro * model.seq / model.cp * model.hidden * model.vocab / model.tp
        device = self.platform.require_device()
        rate = max(each.achieved for each in device.flops.values())
        return flops / rate


def _least_bytes(model: Transformer, ranks: int) -> float:
    """Return what weights and gradients of a rank take at the least, whatever else is kept."""
    shares = model.tp * model.pp * (ranks // (model.tp * model.pp) if model.zero == 3 else 1)
    experts = max(1, model.ep) if model.experts else 1
    # A lower bound, cheap enough to skip the memory model for layouts that cannot fit.
    return 2 * item_bytes(model.dtype) * model.parameters / shares / experts


def _powers(most: int) -> list[int]:
    return [1 << n for n in range(max(1, most).bit_length()) if 1 << n <= most]


def _stages(layers: int, most: int) -> list[int]:
    """Return numbers of pipeline stages to try: powers of two, and what divides the layers."""
    found = {*_powers(min(layers, most, 64)), *(n for n in range(1, 17) if layers % n == 0)}
    return sorted(n for n in found if n <= most)


def _chunks(layers: int, stages: int) -> list[int]:
    """Return into how many chunks a stage may be cut: all as large, or the ends a layer less."""
    if stages == 1:
        return [1]
    most = range(2, -(-layers // stages) + 1)
    even = [n for n in most if layers % (stages * n) == 0 or _counts_ends(layers, stages * n)]
    return [1, *even]


def _counts_ends(layers: int, chunks: int) -> bool:
    """Return whether the embedding and the head make up for layers that do not divide."""
    return layers % chunks != 0 and (layers + 2) % chunks == 0
