"""Training steps that others measured, with the stacks that ran them: fitted rows and unseen ones.

Splits are those of ``splits.py``. Of the 720 steps of vTrain every sixth is predicted here.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from validation.nccl_tables import data_folder
from validation.splits import STEPS_FSDP, STEPS_MEGATRON, STEPS_TORCHTITAN, Split
from validation.step_rows import StepRow, kept, set_targets
from weft.hardware import platform
from weft.models.job import Job
from weft.models.transformer import Transformer
from weft.models.zoo import MODELS
from weft.planner.job_prediction import predict_job

if TYPE_CHECKING:
    from pathlib import Path

    from validation.target import Target
    from weft.hardware import Platform

NAME = "stacks"
QUESTION = "How long do the steps of real programs take, fitted and unseen?"

# hidden, layers, heads of MPT: yamls of mosaicml/llm-foundry
_MPT = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
_A100_40GB = 1555 / 2039  # HBM of the 40 GB card over that of the 80 GB card, datasheets
_HBM2E = 2.4 / 3.35  # memory of torchtitan's H100 over that of an H100 SXM
# Large products run at the power limit: at the same energy they take as much longer as the limit
# is lower. The step on 8 GPUs needs as much (+0.3 %); that on 128 was looked at again with it.
_AT_500_WATTS = 700 / 500
_EVERY = 6  # of vTrain's steps


@dataclass(frozen=True)
class MeasuredStep:
    """One measured step: the model as it was run, where, and its seconds."""

    name: str
    part: str
    model: Transformer
    machine: Platform
    seconds: float
    products: float = 1.0  # of this machine over those of its device

    def row(self, stack: str) -> StepRow:
        """Return the step next to its prediction."""
        job = Job(self.name, self.model, self.machine.num_ranks, (), stack, products=self.products)
        found = predict_job(job, self.machine, anyway=True)
        return StepRow.of(self.part, self.name, self.seconds, found, stack)


def fsdp_steps(folder: Path) -> Iterator[MeasuredStep]:
    """FSDP steps of llm-foundry in bf16; the rows in fp8 are left out: their scheme is not told."""
    with (folder / STEPS_FSDP.folder).open() as file:
        for row in csv.DictReader(file):
            if "fp8" in row["precision"]:
                continue
            hidden, layers, heads = _MPT[row["model"]]
            model = replace(
                MODELS["mpt-7b"],
                hidden=hidden,
                layers=layers,
                heads=heads,
                ffn=4 * hidden,
                seq=int(row["seq_len"]),
                batch=int(row["global_batch"]),
                micro_batch=int(row["micro_batch"]),
                fsdp=True,
                recompute="full" if row["activation_ckpt"] == "True" else "none",
            )
            node = "h100-8" if row["gpu"].startswith("h100") else "a100-8"
            machine = _sized(node, int(row["gpus"]))
            if row["gpu"] == "a100_40gb":
                machine = _with_memory(machine, _A100_40GB)
            yield MeasuredStep("mpt", row["model"], model, machine, float(row["step_seconds"]))


def megatron_steps(folder: Path, every: int = _EVERY) -> Iterator[MeasuredStep]:
    """GPT steps of vTrain, by Megatron-DeepSpeed in fp16 with activations recomputed."""
    with (folder / STEPS_MEGATRON.folder).open() as file:
        for number, row in enumerate(csv.DictReader(file)):
            if number % every:
                continue
            value = {key: int(row[key]) for key in row if key != "iteration_ms"}
            model = Transformer(
                hidden=value["hidden"],
                layers=value["layers"],
                heads=value["heads"],
                ffn=4 * value["hidden"],
                vocab=51200,
                seq=value["seq_len"],
                batch=value["global_batch"],
                micro_batch=value["micro_batch"],
                tp=value["tp"],
                pp=value["pp"],
                dtype="fp16",
                flash=False,
                dropout=True,
                tied=True,
                clip=True,
                overlap_grad=False,
                recompute="full",
                fused_softmax=True,
                fused_loss=False,
                fused_accumulation=False,
            )
            machine = _sized("a100-8", value["gpus"])
            wide = value["hidden"] == 2048
            part = f"hidden {value['hidden']}" + f", {value['layers']} layers" * wide
            yield MeasuredStep("gpt", part, model, machine, float(row["iteration_ms"]) * 1e-3)


def torchtitan_steps(folder: Path) -> Iterator[MeasuredStep]:
    """Llama 3.1 8B with torch.compile in bf16 on H100 with slower memory, at 500 W."""
    with (folder / STEPS_TORCHTITAN.folder).open() as file:
        for row in csv.DictReader(file):
            if row["techniques"] != "FSDP+compile":
                continue
            batch, ranks = int(row["global_batch"]), int(row["gpus"])
            model = replace(
                MODELS["llama-8b"],
                seq=8192,
                batch=batch,
                micro_batch=int(row["local_batch"]),
                fsdp=True,
                recompute="selective_op",
            )
            machine = _with_memory(_sized("h100-8", ranks), _HBM2E)
            seconds = batch * 8192 / float(row["tokens_per_s_per_gpu"]) / ranks
            yield MeasuredStep(
                *("llama-8b", f"table {row['table']}", model, machine, seconds),
                products=_AT_500_WATTS,
            )


def _sized(node: str, ranks: int) -> Platform:
    return platform(node).resized(ranks) if ranks <= 8 else platform(f"{node}x{ranks // 8}")


def _with_memory(machine: Platform, share: float) -> Platform:
    device = machine.require_device()
    slower = replace(
        device, memory_rate=device.memory_rate * share, memory_rated=device.memory_rated * share
    )
    return replace(machine, name=f"{machine.name} with {share:.2f} of its memory", device=slower)


def targets() -> Iterator[Target]:
    """Score each data set, the fitted part and the unseen part apart."""
    folder = data_folder()
    if folder is None:
        return
    for each in SETS:
        rows = set_rows(each, folder)
        for fitted in (True, False):
            mine = [row for row in rows if (row.part in each.split.fitted) == fitted]
            if mine:
                yield from set_targets(
                    *(NAME, each.title, each.stack, mine, each.allowed),
                    fitted=fitted,
                    held_out=each.split.held_out_label,
                )


@dataclass(frozen=True)
class StepSet:
    """A data set, the stack that ran it, its split, and the mean error it must stay below."""

    stack: str
    title: str
    steps: Callable[[Path], Iterable[MeasuredStep]]
    split: Split
    allowed: float


@kept
def set_rows(each: StepSet, folder: Path) -> Iterator[StepRow]:
    """Predict the steps of a data set."""
    return (step.row(each.stack) for step in each.steps(folder))


SETS = (
    StepSet("composer", "FSDP steps of MPT, llm-foundry", fsdp_steps, STEPS_FSDP, 8.0),
    StepSet("megatron-deepspeed", "GPT steps, vTrain", megatron_steps, STEPS_MEGATRON, 6.0),
    StepSet("torchtitan", "Llama 3.1 8B, torchtitan", torchtitan_steps, STEPS_TORCHTITAN, 8.0),
)
