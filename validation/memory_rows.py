"""Measured memory of training jobs, and the same jobs as weft describes them."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from validation.splits import MEMORY_MEGATRON, MEMORY_SIMUMAX
from validation.target import Target
from weft.errors import WeftError
from weft.models.megatron import imported
from weft.models.transformer import Transformer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import stage_memories
from weft.models.zoo import MODELS

_SIMUMAX = "SimuMax v1.2, MooreThreads/SimuMax @4dcaae513ba7"
_MEGATRON = "golden values of NVIDIA/Megatron-LM @d98e8a64ddf3"
_GIB = 1 << 30
# Of the tokenizers that Megatron's tests use, padded to a multiple of 128: GPT-2's, and for BERT
# the WordPiece vocabulary of bert-large-uncased.
_VOCABULARY = 50304
_VOCABULARIES = {"bert": 30592}
# Columns of the golden values, and the arguments of Megatron that they hold.
_ARGUMENTS = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "ffn_hidden": "ffn_hidden_size",
    "heads": "num_attention_heads",
    "query_groups": "num_query_groups",
    "kv_channels": "kv_channels",
    "seq_len": "seq_length",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "layers_per_virtual_stage": "num_layers_per_virtual_pipeline_stage",
    "virtual_stages_per_rank": "num_virtual_stages_per_pipeline_rank",
    "cp": "context_parallel_size",
    "cp_comm_type": "cp_comm_type",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "num_experts": "num_experts",
    "topk": "moe_router_topk",
    "moe_ffn_hidden": "moe_ffn_hidden_size",
    "shared_expert_ffn": "moe_shared_expert_intermediate_size",
    "mtp_layers": "mtp_num_layers",
    "mla": "multi_latent_attention",
    "swiglu": "swiglu",
    "sequence_parallel": "sequence_parallel",
    "dist_optimizer": "use_distributed_optimizer",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
    "recompute": "recompute_granularity",
    "recompute_method": "recompute_method",
    "recompute_layers": "recompute_num_layers",
    "recompute_modules": "recompute_modules",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8_format": "fp8_format",
    "attention_backend": "attention_backend",
    "transformer_impl": "transformer_impl",
}
_FLAGS = frozenset(
    ("multi_latent_attention", "swiglu", "sequence_parallel", "use_distributed_optimizer")
) | {"overlap_grad_reduce", "overlap_param_gather", "bf16", "fp16"}


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """The largest allocation of a job, measured and as weft expects it (GiB)."""

    model: str
    case: str
    measured: float
    expected: float

    @property
    def error(self) -> float:
        """How far the expected is from the measured, relative to it."""
        return self.expected / self.measured - 1


def memory_targets(folder: Path) -> Iterator[Target]:
    """Compare the largest allocations of jobs, those that were fitted to apart from the others."""
    for split, read, source, limit in (
        (MEMORY_SIMUMAX, simumax_rows, _SIMUMAX, 4.0),
        (MEMORY_MEGATRON, megatron_rows, _MEGATRON, 6.0),
    ):
        if not (folder / split.folder).is_dir():
            continue
        rows = list(read(folder))
        for model in (*split.fitted, *split.held_out):
            errors = [100 * abs(each.error) for each in rows if each.model == model]
            if not errors:
                continue
            fitted = model in split.fitted
            name = f"memory of {model}, {len(errors)} jobs: median error"
            yield Target(
                *("predict", name, None, "%", source, median(errors), limit, "value", fitted),
                note=f"mean {mean(errors):.1f} %, largest {max(errors):.1f} %",
            )


def simumax_rows(folder: Path) -> Iterator[MemoryRow]:
    """Read Llama slices on 8 B200."""
    with (folder / "simumax_b200" / "llama_b200.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            model = simumax_model(row)
            expected = max(each.total for each in stage_memories(model, Layout(model, 8)))
            measured = float(row["real_alloc_gib"])
            yield MemoryRow(row["model"], row["case"], measured, expected / _GIB)


def simumax_model(row: dict[str, str]) -> Transformer:
    """Return the model of a row of SimuMax: bf16, distributed optimizer, fp32 gradients."""
    shapes = {
        "llama3-70b": MODELS["llama-3-70b"],
        "llama3-405b": replace(MODELS["llama-3.1-405b"], kv_heads=16),
    }
    tp, dp = int(row["tp"]), int(row["dp"])
    return replace(
        shapes[row["model"]],
        layers=int(row["layers"]),
        seq=int(row["seq_len"]),
        tp=tp,
        pp=int(row["pp"]),
        sp=tp > 1,
        batch=int(row["micro_batches"]) * dp,
        micro_batch=int(row["micro_batch"]),
        zero=1,
        grad_dtype="fp32",
    )


def megatron_rows(folder: Path) -> Iterator[MemoryRow]:
    """Read golden values of Megatron's tests that say on how many GPUs they ran.

    What is logged is the last rank's, so the last stage's is compared.
    """
    path = folder / "megatron_goldens" / "goldens_a100_h100.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if (
                not row["peak_gib"]
                or row["gpus_source"] == "unknown"
                or row["batch_divides"] != "1"
            ):
                continue
            try:
                model = golden_model(row)
                last = stage_memories(model, Layout(model, int(row["gpus"])))[-1]
            except WeftError:
                continue  # what cannot be described is not compared
            name = f"{row['case']} {row['golden']}"
            yield MemoryRow(row["model"], name, float(row["peak_gib"]), last.total / _GIB)


def golden_model(row: dict[str, str]) -> Transformer:
    """Return the model of a row of the golden values, by its arguments."""
    arguments: dict[str, Any] = {"vocab_size": _VOCABULARIES.get(row["model"], _VOCABULARY)}
    for key, value in json.loads(row["other_args"] or "{}").items():
        arguments[key.replace("-", "_")] = value
    for column, name in _ARGUMENTS.items():
        if row[column]:
            arguments[name] = row[column] == "1" if name in _FLAGS else row[column]
    older = row["deterministic"] == "1" and row["golden"].startswith("lts")
    if older and not row["attention_backend"]:
        # its Transformer Engine has no deterministic fused backward pass (found on "gpt")
        arguments["attention_backend"] = "unfused"
    return imported(arguments, row["case"], row["case"], int(row["gpus"])).model
