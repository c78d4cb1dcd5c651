"""Steps of Megatron: Megatron-Bridge's tables, SimuMax on B200, and Megatron-LM's own tests."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from validation.memory_rows import golden_model, simumax_model
from validation.nccl_tables import data_folder
from validation.splits import STEPS_BRIDGE, STEPS_GOLDENS, STEPS_SIMUMAX, Split
from validation.step_rows import StepRow, kept, predicted_job, set_targets
from weft.errors import WeftError
from weft.hardware import platform
from weft.models.job import Job
from weft.models.transformer_layout import Layout
from weft.models.zoo import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from validation.target import Target
    from weft.hardware import Platform
    from weft.models.transformer import Transformer

NAME = "megatron_steps"
QUESTION = "How long do steps of Megatron take, of dense models and of experts, large and tiny?"
_BRIDGE = {
    "LLAMA3_8B": "llama-3.1-8b",
    "LLAMA3_70B": "llama-3-70b",
    "LLAMA3.1_405B": "llama-3.1-405b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "DeepSeekV3": "deepseek-v3",
    "GPT OSS 120B": "gpt-oss-120b",
}
# Recipes of experts as main of Megatron-Bridge has them (scripts/performance/configs), taken for
# all releases since 26.02: how tokens are exchanged, whether behind another micro batch, and how
# much is captured in CUDA graphs: everything (mlperf), attention and router, or nothing.
_NODE_ALL = ("alltoall", False, "megatron")
_RECIPES: dict[tuple[str, ...], tuple[str, bool, str]] = {
    (): ("flex", True, "mlperf"),  # MXFP8 on GB200 since 26.06 (pull requests 4226 and 4249)
    # the recipe before ep 16; and one that takes as long a layer as H100: nothing is captured
    ("Qwen3_30B_a3B", "DGX-H100", "8", "1", "2"): _NODE_ALL,
    ("Qwen3_30B_a3B", "DGX-B200", "8", "1", "1"): ("flex", False, "megatron"),
    ("DeepSeekV3", "DGX-B200", "32"): ("flex", True, "megatron-graphs"),
    ("Qwen3_30B_a3B", "DGX-B200"): ("flex", False, "megatron-graphs"),
    ("Qwen3_30B_a3B", "DGX-H100"): ("flex", False, "megatron"),
    ("Qwen3_235B_a22B", "DGX-GB200"): ("flex", False, "megatron-graphs"),
    ("Qwen3_235B_a22B", "DGX-H100"): ("alltoall", True, "megatron"),
    ("DeepSeekV3", "DGX-GB200"): ("flex", False, "megatron-graphs"),
    ("DeepSeekV3", "DGX-B200"): ("flex", False, "megatron"),
    ("GPT OSS 120B", "DGX-GB200"): ("alltoall", True, "megatron"),
}
# The layers of each chunk of 16; the last one has the module that predicts a second token and the
# head too (src/megatron/bridge/recipes/deepseek/deepseek_v3.py).
_DEEPSEEK_STAGES = (*(4,) * 15, 1)
_NODES = {"DGX-H100": "h100-8", "DGX-B200": "b200-8"}
_RACK = 64  # GPUs of an NVL72 rack that a job uses
# SimuMax's profile of its machine (configs/system/b200_bf16_ceperm.json) has products at 0.44 to
# 0.53 of the rated speed where the tables that b200 is fitted to have 0.6 to 0.75.
_SLOW_PRODUCTS = 1.5
_GOLDEN_EVERY = 4  # of the host-bound steps of GPT on A100, which are alike


@dataclass(frozen=True, slots=True)
class MegatronSet:
    """A data set, its rows, its split, and the median error it must stay below."""

    title: str
    source: str
    rows: Callable[[Path], Iterable[StepRow]]
    split: Split
    allowed: float


def targets() -> Iterator[Target]:
    """Score each data set, the fitted part and the unseen part apart."""
    folder = data_folder()
    if folder is None:
        return
    for each in _SETS:
        rows = list(each.rows(folder))
        for fitted, parts in ((True, each.split.fitted), (False, each.split.held_out)):
            mine = [row for row in rows if row.part in parts]
            if mine:
                yield from set_targets(
                    *(NAME, each.title, each.source, mine, each.allowed),
                    fitted=fitted,
                    by="median",
                    held_out=each.split.held_out_label,
                )


@kept
def bridge_rows(folder: Path) -> Iterator[StepRow]:
    """Read Megatron-Bridge's performance summaries; a row with a known regression is left out."""
    with (folder / STEPS_BRIDGE.folder).open() as file:
        for row in csv.DictReader(file):
            regressed = row["model"] == "GPT OSS 120B" and row["release"] == "26.06.01"
            if row["model"] not in _BRIDGE or regressed:
                continue
            ranks = int(row["gpus"])
            job = Job("bridge", _bridge_model(row), ranks, (), _recipe(row)[2])
            try:
                found = predicted_job(job, _bridge_machine(row["system"], ranks))
            except WeftError:
                continue  # a layout that weft does not have
            name = f"{row['model']} {row['release']} {row['system']} {row['precision']}"
            yield StepRow.of(row["model"], name, float(row["step_seconds"]), found, job.stack)


def _bridge_model(row: dict[str, str]) -> Transformer:
    def number(key: str) -> int:
        return int(row[key] or 1)

    model, tp, pp = MODELS[_BRIDGE[row["model"]]], number("tp"), number("pp")
    chunks = number("vp") if pp > 1 else 1
    dispatcher, overlap, _ = _recipe(row)
    if row["model"] == "GPT OSS 120B" and "FP8" not in row["precision"]:
        # Recipes in bf16 recompute moe_act and do not fuse; that in MXFP8 has fused experts
        # (cutedsl_fused_grouped_mlp). YaRN's scale keeps positions out of the fused kernel.
        model = replace(model, fused_experts=False, recompute="moe_act")
    if row["model"] == "DeepSeekV3":
        # "mlp" on GB200 in 26.04 (pull request 3031), which are three dense layers: not modelled
        mlp = row["system"] == "DGX-GB200" and row["release"].startswith("26.04")
        model = replace(model, recompute="none" if mlp else "mla_up_proj")
        if pp * chunks == len(_DEEPSEEK_STAGES):
            model = replace(model, stage_layers=_DEEPSEEK_STAGES)
    return replace(
        model,
        fused_rotary=row["model"] != "GPT OSS 120B",
        seq=number("seq_len"),
        batch=number("gbs"),
        micro_batch=number("mbs"),
        tp=tp,
        pp=pp,
        cp=number("cp"),
        ep=number("ep"),
        etp=1 if model.experts else 0,
        interleave=chunks,
        count_ends=model.layers % (pp * chunks) != 0,
        sp=tp > 1,
        tp_overlap=tp > 1,
        zero=3 if int(row["fsdp"] or 0) > 1 else 1,
        math="fp8" if "FP8" in row["precision"] else "",
        lora=16 if row["kind"] == "LoRA" else 0,
        dispatcher=dispatcher,
        ep_overlap=overlap,
    )


def _recipe(row: dict[str, str]) -> tuple[str, bool, str]:
    """Return how the recipe of a row exchanges tokens of experts, and the stack that runs it."""
    model, system, release = row["model"], row["system"], row["release"]
    if model.startswith("LLAMA"):
        return "alltoall", False, "mlperf"
    if release < "26":
        return _first_recipe(row)
    own: tuple[str, ...] = (model, system, row["ep"], row["mbs"], row["pp"])
    if system == "DGX-GB200" and release >= "26.06":
        own = ()
    return _RECIPES.get(own, _RECIPES.get(own[:3], _RECIPES.get(own[:2], _NODE_ALL)))


def _first_recipe(row: dict[str, str]) -> tuple[str, bool, str]:
    """Return the recipe of 25.09 and 25.11: tokens are dropped, which DeepEP cannot, but once."""
    if row["note"] == "dropless":
        return "flex", True, "megatron"
    graphs = "Qwen3_30B" in row["model"] or ("Qwen3" in row["model"] and "GB200" in row["system"])
    return "alltoall", False, "mlperf" if graphs and "H100" not in row["system"] else "megatron"


def _bridge_machine(system: str, ranks: int) -> Platform:
    if system == "DGX-GB200":
        rack = platform("gb200-nvl72").resized(min(ranks, _RACK))
        return rack if ranks <= _RACK else rack.cluster(ranks // _RACK)
    node = platform(_NODES[system])
    return node.resized(ranks) if ranks <= 8 else node.cluster(ranks // 8)


@kept
def simumax_rows(folder: Path) -> Iterator[StepRow]:
    """Read Llama slices on 8 B200: bf16, no overlap of any communication."""
    with (folder / STEPS_SIMUMAX.folder / "llama_b200.csv").open() as file:
        for row in csv.DictReader(file):
            model = replace(simumax_model(row), overlap_grad=False, overlap_param=False)
            job = Job("slice", model, 8, (), "megatron", products=_SLOW_PRODUCTS)
            found = predicted_job(job, platform("b200-8"))
            yield StepRow.of(
                row["model"], row["case"], float(row["real_ms"]) * 1e-3, found, job.stack
            )


@kept
def golden_rows(folder: Path) -> Iterator[StepRow]:
    """Read steps of Megatron-LM's functional tests that say on how many GPUs they ran."""
    path = folder / STEPS_GOLDENS.folder / "goldens_a100_h100.csv.gz"
    alike = 0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            part = row["model"] if row["model"] != "gpt" else f"gpt {row['platform']}"
            known = part in (*STEPS_GOLDENS.fitted, *STEPS_GOLDENS.held_out)
            if row["gpus_source"] == "unknown" or row["batch_divides"] != "1" or not known:
                continue
            alike += part == "gpt a100"
            if part == "gpt a100" and alike % _GOLDEN_EVERY:
                continue
            ranks = int(row["gpus"])
            node = platform(f"{row['platform']}-8")
            machine = node.resized(ranks) if ranks <= 8 else node.cluster(ranks // 8)
            try:
                model = golden_model(row)
                Layout(model, ranks)
                job = Job("test", model, ranks, (), "megatron")
                found = predicted_job(job, machine)
            except WeftError:
                continue  # what cannot be described is not compared
            yield StepRow.of(part, row["case"], float(row["step_seconds"]), found, job.stack)


_SETS = (
    MegatronSet(
        "Megatron-Bridge",
        "NVIDIA-NeMo/Megatron-Bridge @067f987df03b, performance summaries",
        bridge_rows,
        STEPS_BRIDGE,
        8.0,
    ),
    MegatronSet(
        "Llama slices on B200, SimuMax",
        "SimuMax v1.2, MooreThreads/SimuMax @4dcaae513ba7",
        simumax_rows,
        STEPS_SIMUMAX,
        7.0,
    ),
    MegatronSet(
        "Megatron-LM's tests",
        "golden values of NVIDIA/Megatron-LM @d98e8a64ddf3",
        golden_rows,
        STEPS_GOLDENS,
        20.0,
    ),
)
