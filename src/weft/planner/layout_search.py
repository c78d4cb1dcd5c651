"""Search the layout that trains a transformer fastest on given ranks: enumerate, bound, refine.

```
 layouts that divide -> those that fit into memory -> ranked by an estimate -> the best predicted
```

The estimate adds up what one layer takes by the step engine, the bubble of the pipeline, and
communication of weights and gradients that computation cannot hide. It only ranks: every number
that is shown comes from the prediction of the whole step.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.errors import NoPlanError, UsageError
from weft.hardware.dtypes import item_bytes, output_dtype
from weft.models.transformer import Transformer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import fullest_memory
from weft.models.transformer_step import build
from weft.planner.job_prediction import predict_job
from weft.planner.predict import memory_parts
from weft.planner.prices import Prices, default_library
from weft.step import StepEngine
from weft.step.step_graph import Collective, Memory
from weft.units import format_size

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.models.job import Job
    from weft.planner.predict import Prediction
    from weft.step import HostModel

    _Run = Callable[[Callable[[Job], "LayoutChoice"], list[Job]], list["LayoutChoice"]]

SEARCHED = ("tp", "cp", "pp", "interleave", "ep", "zero", "micro_batch", "recompute")
_MICRO = (1, 2, 4, 8)
# By what is computed again: of layouts alike in the rest only the first that fits counts, but
# attention, the activation of experts and latent attention's products are no more than each other.
_RECOMPUTE = (("none",), ("selective", "moe_act", "mla_up_proj"), ("full",))
# Predictions over estimates differ by the job (means 0.97 to 1.06 on layouts of five models), and
# less within one: those of layouts near the best were at most so far below the least seen before.
_SPREAD = 0.02
_AT_ONCE = 4  # layouts for each core that are predicted before the rest is looked at again
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
        return _settings(self.job.model)

    def changes_of(self, asked: Transformer) -> dict[str, Any]:
        """Return the settings that turn a model into that of this layout, the searched ones first.

        Stages of given numbers of layers become even ones, which are written out.
        """
        model = self.job.model
        assert isinstance(model, Transformer)
        names = dict.fromkeys((*SEARCHED, "sp", "count_ends", *(f.name for f in fields(asked))))
        found = {
            name: getattr(model, name)
            for name in names
            if getattr(model, name) != getattr(asked, name)
        }
        if "stage_layers" in found:
            chunks = Layout(model, self.job.num_ranks).chunks
            found["stage_layers"] = "-".join(str(len(chunk)) for chunk in chunks)
        return found

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


@dataclass(frozen=True, slots=True)
class _PassTimes:
    """Seconds of a micro batch: of a layer, and of embedding, head and loss.

    ``fixed`` and ``fixed_layer`` are what a step takes once: the optimizer, what is not hidden.
    """

    layer: float
    ends: float
    fixed: float
    fixed_layer: float


@contextmanager
def _executor(cores: int) -> Iterator[_Run]:
    """Yield what runs a function on many jobs: on several cores processes share them."""
    if cores < 2:
        yield lambda function, jobs: list(map(function, jobs))
        return
    # Forked from a server: this process may have threads.
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(cores, context) as pool:
        yield lambda function, jobs: list(pool.map(function, jobs))


def _choice(platform: Platform, host: HostModel | None, job: Job) -> LayoutChoice:
    return LayoutChoice(job, predict_job(job, platform, host=host, brief=True))


@dataclass
class LayoutSearch:
    """Searches the layouts of one job; settings that were ``given`` are kept as they are."""

    job: Job
    platform: Platform
    given: frozenset[str] = frozenset()
    host: HostModel | None = None
    num_layouts: int = 0  # that divide
    num_fitting: int = 0
    num_predicted: int = 0
    num_open: int = 0  # not predicted, though they may be among the best
    _refusal: str = ""  # why a layout does not divide, the first of all
    _times: dict[object, _PassTimes] = field(default_factory=dict)

    def best(
        self, count: int = 10, refined: int = 12, *, most: int = 48, cores: int = 1
    ) -> list[LayoutChoice]:
        """Return the fastest layouts that fit, predicted.

        At least ``refined`` of them are predicted, in the order of their estimates, and more until
        no estimate is left that could belong to a faster one. Where that takes more than ``most``,
        ``num_open`` of them were not looked at.

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
                f"no layout of {self.job.name} divides {self.platform.num_ranks} ranks with {kept}"
                f"{self._refusal}",
                "Change one of these settings, or leave it to the search.",
            )
        if not fitting:
            raise self._nothing_fits()
        prices = Prices(self.platform, default_library(self.platform))
        estimates = {model: self.estimate(model, prices) for model in fitting}
        left = sorted(fitting, key=lambda model: estimates[model])
        found: list[LayoutChoice] = []
        least = 1.0  # of predictions over their estimates
        with _executor(cores if len(left) > 1 else 1) as run:
            while left and len(found) < most:
                if len(found) >= max(count, refined):
                    bound = found[count - 1].seconds / least
                    if estimates[left[0]] > bound:
                        break
                taken = max(refined, count) if not found else _AT_ONCE * cores
                taken = min(taken, most - len(found))
                jobs = [replace(self.job, model=model) for model in left[:taken]]
                predicted = run(partial(_choice, self.platform, self.host), jobs)
                for model, each in zip(left, predicted, strict=False):
                    least = min(least, each.seconds / estimates[model] - _SPREAD)
                found = sorted([*found, *predicted], key=lambda each: each.seconds)
                del left[:taken]
        self.num_predicted = len(found)
        bound = found[:count][-1].seconds / least
        self.num_open = sum(estimates[each] <= bound for each in left)
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

        Of layouts that differ in recomputation alone only those that recompute least are yielded:
        the others fit too, and are never faster.
        """
        room = self.platform.require_device().memory_bytes
        kinds = self._recomputing
        for shaped, layout in self._divided():
            fits, least = False, _least_bytes(shaped, self.platform.num_ranks)
            for alike in kinds:
                self.num_layouts += len(alike)
                if least > room:
                    continue
                models = [replace(shaped, recompute=recompute) for recompute in alike]
                if not fits:
                    roomy = [m for m in models if fullest_memory(m, layout).total <= room]
                    yield from roomy
                    self.num_fitting += len(roomy)
                    fits = bool(roomy)
                else:
                    self.num_fitting += len(models)

    def _divided(self) -> Iterator[tuple[Transformer, Layout]]:
        """Yield what divides of the combinations of settings, but for recomputation."""
        for shaped in self._layouts():
            try:
                yield shaped, Layout(shaped, self.platform.num_ranks)
            except UsageError as refused:
                self._refusal = self._refusal or f": {refused.args[0]}"

    @property
    def _recomputing(self) -> list[list[str]]:
        """What is tried to be recomputed, those together that are no more than each other."""
        if "recompute" in self.given:
            return [self._values("recompute", [])]
        lacks = {"moe_act": not self._has("experts"), "mla_up_proj": not self._has("kv_rank")}
        return [[kind for kind in kinds if not lacks.get(kind)] for kinds in _RECOMPUTE]

    def _nothing_fits(self) -> NoPlanError:
        """Return the error of layouts that are all too large: what the smallest one needs."""
        model, memory = self._smallest()
        device = self.platform.require_device()
        parts = memory_parts(memory)
        sized = ", ".join(f"{name} {format_size(size)}" for name, size in parts.items() if size)
        settings = " ".join(f"{key}={value}" for key, value in _settings(model).items())
        hints = ["more ranks", "a device with more memory"]
        if parts["activations"] > device.memory_bytes // 2:
            hints.append("a shorter sequence (seq)")
        if kept := sorted(self.given.intersection(SEARCHED)):
            hints.append(f"leave {', '.join(kept)} to the search")
        return NoPlanError(
            f"none of {self.num_layouts} layouts of {self.job.name} fits in "
            f"{format_size(device.memory_bytes)} per rank; the smallest needs "
            f"{format_size(memory.total)} ({sized}) with {settings}",
            f"Try: {'; '.join(hints)}.",
        )

    def _smallest(self) -> tuple[Transformer, Memory]:
        """Return the layout whose fullest rank needs the least memory, and what it needs."""
        found: tuple[Transformer, Memory] | None = None
        for shaped, layout in self._divided():
            least = _least_bytes(shaped, self.platform.num_ranks)
            if found is not None and least >= found[1].total:
                continue
            for recompute in (kind for alike in self._recomputing for kind in alike):
                model = replace(shaped, recompute=recompute)
                memory = fullest_memory(model, layout)
                if found is None or memory.total < found[1].total:
                    found = model, memory
        assert found is not None  # a layout divides
        return found

    def _has(self, part: str) -> bool:
        return getattr(self.job.model, part, 0) > 0

    def _layouts(self) -> Iterator[Transformer]:
        """Yield every combination of settings that were not given, but for recomputation."""
        model = self.job.model
        if not isinstance(model, Transformer) or model.mode != "train":
            raise UsageError(
                f"--search layout: {self.job.name} is not a transformer in training",
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
                    sp, dp = self._value("sp", tp > 1), self._value("dp", 0)
                    shaped = replace(
                        model,
                        tp=tp,
                        pp=pp,
                        cp=cp,
                        sp=sp,
                        dp=dp,
                        fsdp=False,
                        # these two fit the stages, and the tp, that the job asks for
                        stage_layers=self._value("stage_layers", ()),
                        etp=self._value("etp", 1 if model.etp == 1 else 0),
                    )
                    yield from self._details(shaped)

    def _details(self, model: Transformer) -> Iterator[Transformer]:
        chunks = _chunks(model.layers, model.pp)
        experts = _powers(min(model.experts, 64)) if model.experts else [1]
        for interleave in self._values("interleave", chunks):
            for ep in self._values("ep", experts):
                ends = _counts_ends(model.layers, model.pp * interleave)
                for zero in self._stages_of_zero(model):
                    for micro in self._values("micro_batch", list(_MICRO)):
                        yield replace(
                            model,
                            count_ends=self._value("count_ends", ends),
                            interleave=interleave,
                            ep=ep,
                            zero=zero,
                            micro_batch=micro,
                        )

    def _values(self, key: str, tried: list[Any]) -> list[Any]:
        return [getattr(self.job.model, key)] if key in self.given else tried

    def _value(self, key: str, implied: Any) -> Any:
        return getattr(self.job.model, key) if key in self.given else implied

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
        each = self._pass_times(replace(model, micro_batch=layout.micro), prices)
        layers = [
            sum(len(layout.chunks[position]) for position in layout.positions(stage))
            for stage in range(model.pp)
        ]
        if model.zero == 3:
            micro_batch = each.ends + layers[0] * each.layer
            return layout.num_micro * micro_batch + each.fixed + layers[0] * each.fixed_layer
        stages = [count * each.layer for count in layers]
        stages[-1] += each.ends
        slowest = max(stages)
        # Bubble of the interleaved 1F1B schedule (arXiv 2104.04473): a micro batch passes a chunk
        # of every other stage before the slowest begins and after it has ended.
        bubble = (sum(stages) - slowest) / model.interleave
        held = model.parameters / (model.tp * model.pp * (layout.replicas if model.zero else 1))
        optimizer = _OPTIMIZER_BYTES * held / self.platform.require_device().memory_rate
        shared = self._exposed_gradients(model, layout, max(layers), each.layer, prices)
        return layout.num_micro * slowest + bubble + shared + optimizer

    def _exposed_gradients(
        self, model: Transformer, layout: Layout, layers: int, layer: float, prices: Prices
    ) -> float:
        """Return what the last backward and the first forward pass cannot hide of a sum."""
        weights, hidden = model.layer_weights(model.kinds[-1]), layers * layer
        if "edp" in layout.groups:
            shares = {"dp": weights.dense, "edp": weights.expert}
        else:
            shares = {"dp": weights.total}
        moved = 0.0
        for name, count in shares.items():
            group = layout.groups[name]
            if group.size > 1 and count:
                ranks = tuple(range(0, group.size * group.stride, group.stride))
                what = Collective("all_reduce", 2 * count * layers)
                moved += prices.collective(what, ranks)
        return max(0.0, moved - hidden)

    def _pass_times(self, model: Transformer, prices: Prices) -> _PassTimes:
        """Return what a micro batch takes by a simulation of few layers on one stage.

        What a second micro batch adds, of one layer more and of none. Sums of gradients and the
        optimizer are the same in both, so without ZeRO 3 replicas are left out.
        """
        sharded = model.zero == 3
        key = model.tp, model.cp, model.ep, model.micro_batch, model.recompute, sharded
        if key not in self._times:
            ranks = model.tp * model.cp * max(1, model.ep // (model.cp if model.ep > 1 else 1))
            ranks = self.platform.num_ranks if sharded else ranks
            replicas = ranks // (model.tp * model.cp)
            alone = replace(
                model,
                pp=1,
                dp=0,
                interleave=1,
                zero=model.zero if sharded else 0,
                shard=model.shard if sharded else 0,
                stage_layers=(),
                dense_layers=0,
                count_ends=False,
            )
            # Gathers of one layer hide behind another one, and layers may be of several kinds.
            few = (2, 4) if sharded or len(set(alone.kinds)) > 1 else (1, 2)
            runs = []
            for layers in few:
                one = replace(alone, layers=layers)
                for micro_batches in (1, 2):
                    batch = model.micro_batch * replicas * micro_batches
                    step = build("layer", replace(one, batch=batch), ranks)
                    if self.job.software is not None:
                        step = self.job.software.applied(step)
                    engine = StepEngine(step, self.platform, prices, host=self.host)
                    runs.append(engine.run().seconds)
            fewer, more = runs[1] - runs[0], runs[3] - runs[2]
            layer = max(0.0, more - fewer) / (few[1] - few[0])
            fixed, fixed_more = runs[0] - fewer, runs[2] - more
            fixed_layer = max(0.0, fixed_more - fixed) / (few[1] - few[0])
            self._times[key] = _PassTimes(
                layer,
                max(0.0, fewer - few[0] * layer),
                max(0.0, fixed - few[0] * fixed_layer),
                fixed_layer,
            )
        return self._times[key]


def _settings(model: Any) -> dict[str, Any]:
    """Return the settings of a layout that are not those of one rank."""
    found = {name: getattr(model, name) for name in (*SEARCHED, "sp", "count_ends")}
    usual = {"zero": 0, "recompute": "none", "micro_batch": 0, "sp": False, "count_ends": False}
    return {key: value for key, value in found.items() if value != usual.get(key, 1)}


def _least_bytes(model: Transformer, ranks: int) -> float:
    """Return what weights and gradients of a rank take at the least, whatever else is kept."""
    shares = model.tp * model.pp
    replicas, zero = ranks // shares, model.zero_stage
    each = item_bytes(model.dtype) / (replicas if zero == 3 else 1)
    if model.trains_weights:
        gradient = item_bytes(model.grad_dtype or output_dtype(model.dtype))
        each += gradient / (replicas if zero >= 2 else 1)
    experts = max(1, model.ep) if model.experts else 1
    # A lower bound, cheap enough to skip the memory model for layouts that cannot fit.
    return each * model.parameters / shares / experts


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
