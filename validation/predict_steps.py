"""Whole steps that others measured, predicted from their configuration alone.

Nothing here was fitted to. GPT-2 large on four A100 by data, tensor and pipeline parallelism
(NeuSight), and MLPerf Training v4.0 on H100: GPT-3 175B, LLaMA-2 70B LoRA, BERT.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from validation.target import ErrorIn, Target
from weft.cost.fit_errors import geomean_error
from weft.hardware import Platform, platform
from weft.models import transformer_step
from weft.models.zoo import MODELS
from weft.planner.predict import predict_seconds
from weft.step import NO_HOST, StepGraph

_NEUSIGHT = "NeuSight (ASPLOS 2025), sitar-lab/NeuSight @6945927d9afc"
_MLPERF = "MLPerf Training v4.0, mlcommons/training_results_v4.0 @6fe954378efe"


def step_targets(folder: Path) -> Iterator[Target]:
    """Compute every step, and the means by origin."""
    for found, name, limit in (
        (_neusight(folder), "GPT-2 large on 4 A100", 10.0),
        (_mlperf(folder), "MLPerf on H100", 15.0),
    ):
        each = list(found)
        yield from each
        errors = [t.weft / t.published - 1 for t in each if t.published]
        if errors:
            mean = 100 * geomean_error(errors)
            yield _target(
                f"{name}: geomean error", None, mean, each[0].source, unit="%", limit=limit
            )


def _target(
    name: str,
    published: float | None,
    weft: float,
    source: str,
    *,
    unit: str = "s",
    limit: float = -1.0,
) -> Target:
    kind: ErrorIn = "value" if published is None else "percent"
    return Target("predict", name, published, unit, source, weft, limit, kind)


def _neusight(folder: Path) -> Iterator[Target]:
    """GPT-2 large in fp32 by Megatron: four samples of 1024 tokens, attention unfused, dropout."""
    there = folder / "neusight" / "label" / "NVIDIA_A100-SXM4-40GB"
    machine = _a100_40gb()
    model = replace(
        MODELS["gpt2-large"], batch=4, dtype="fp32", flash=False, dropout=True, clip=True
    )
    ways = {
        "dp4": model,
        "tp4": replace(model, tp=4),
        "pp4_1": replace(model, pp=4, micro_batch=4),
    }
    for way, spread in ways.items():
        file = there / f"gpt2_large-train-1024-4-{way}.json"
        if file.is_file():
            measured = json.loads(file.read_text(encoding="utf-8"))["e2e_latency"] / 1e3
            graph = transformer_step.build("gpt2-large", spread, 4)
            found = predict_seconds(graph, machine)
            yield _target(f"GPT-2 large, 4 A100, {way}", measured, found, _NEUSIGHT)


def _a100_40gb() -> Platform:
    """Return four A100 of the 40 GB kind: its memory is slower, all else is alike."""
    machine = platform("a100-8", num_ranks=4)
    device = replace(machine.require_device(), memory_rated=1555e9, memory_bytes=40_000_000_000)
    return replace(machine, device=device)


def _mlperf(folder: Path) -> Iterator[Target]:
    """Yield steps of MLPerf: kernels are captured in graphs there, so the host costs nothing."""
    measured = _measured(folder / "mlperf_training_v4.0" / "step_times.csv")
    for (benchmark, num_ranks), make in _CASES.items():
        times = measured.get((benchmark, num_ranks))
        if times:
            found = predict_seconds(make(num_ranks), _h100(num_ranks), host=NO_HOST)
            name = f"{benchmark} on {num_ranks} H100, median of {len(times)}"
            yield _target(name, median(times), found, _MLPERF)


def _measured(file: Path) -> Mapping[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {}
    if not file.is_file():
        return found
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if "H100" in row["accelerator"]:
                ranks = int(row["nodes"]) * int(row["gpus_per_node"])
                batch = row["benchmark"], ranks
                found.setdefault(batch, []).append(float(row["step_time_ms"]) / 1e3)
    return found


def _gpt3(num_ranks: int) -> StepGraph:
    """TP 4, PP 8 interleaved, fp8 products, 2304 sequences, two a micro batch."""
    model = replace(
        MODELS["gpt3-175b"], tp=4, pp=8, batch=2304, micro_batch=2, math="fp8", interleave=6,
        sp=True, tp_overlap=True, zero=1,
    )  # fmt: skip
    return transformer_step.build("gpt3", model, num_ranks)


def _lora(num_ranks: int) -> StepGraph:
    """LLaMA-2 70B with adapters of rank 16: TP 4, on 64 GPUs CP 2; 8 sequences of 8192 tokens."""
    model = replace(
        MODELS["llama-2-70b"], seq=8192, batch=8, micro_batch=1, tp=4, sp=True,
        tp_overlap=True, cp=1 if num_ranks == 8 else 2, math="fp8", lora=16,
    )  # fmt: skip
    return transformer_step.build("llama2_70b_lora", model, num_ranks)


def _bert(num_ranks: int) -> StepGraph:
    """BERT large in fp16. Padding is left out there: half of 512 tokens (arXiv 2107.02027).

    At most 76 tokens of a sample are masked and predicted.
    """
    batch = 768 if num_ranks == 8 else 4608
    model = replace(MODELS["bert-large"], batch=batch, seq=256, scored=76, dtype="fp16")
    return transformer_step.build("bert", model, num_ranks)


def _h100(num_ranks: int) -> Platform:
    return platform("h100-8" if num_ranks == 8 else f"h100-8x{num_ranks // 8}")


_CASES = {
    ("gpt3", 512): _gpt3,
    ("llama2_70b_lora", 8): _lora,
    ("llama2_70b_lora", 64): _lora,
    ("bert", 8): _bert,
    ("bert", 64): _bert,
}
