"""Llama 3.1 405B, Llama 2 70B with LoRA and BERT as MLPerf Training v5.0 submitters ran them.

The layout of every row is that of its configuration file; nothing is fitted to its times. Rows of
"fitted" parts were looked at while models were described.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from validation.nccl_tables import data_folder
from validation.splits import STEPS_405B, STEPS_BERT, STEPS_LORA
from validation.step_rows import StepRow, kept, predicted_job, set_targets
from validation.target import Target
from weft.hardware import platform
from weft.models.job import Job
from weft.models.zoo import MODELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from weft.hardware import Platform
    from weft.models.transformer import Transformer

NAME = "mlperf_v5"
QUESTION = "How long do steps of MLPerf take on other numbers of GPUs, and on other GPUs?"
SOURCE = "MLPerf Training v5.0, mlcommons/training_results_v5.0 @0fdc28f01325"
_NODES = {"H100": "h100-8", "B200": "b200-8", "MI300X": "mi300x-8", "MI325X": "mi325x-8"}
_NEAR = 0.15  # error of a row that is near
_WHOLE_RACK = 72
_RACK = 64  # GPUs of an NVL72 rack that a job uses: powers of two; the submitters do not say


def targets() -> Iterator[Target]:
    """Predict every submission; report rows of 405B, each benchmark's parts, and all together."""
    folder = data_folder()
    if folder is None:
        return
    pooled: dict[bool, list[StepRow]] = {True: [], False: []}
    for split, benchmark in (
        (STEPS_405B, "llama31_405b"),
        (STEPS_LORA, "llama2_70b_lora"),
        (STEPS_BERT, "bert"),
    ):
        rows = sorted(submitted_rows(folder, benchmark), key=lambda row: row.part)
        known = [row for row in rows if row.part in split.fitted]
        if benchmark == "llama31_405b":
            for row in rows:
                name = f"405B on {row.part}"
                fitted = row.part in split.fitted
                yield Target(NAME, name, row.measured, "s", SOURCE, row.predicted, fitted=fitted)
            yield from scaling_targets(rows)
        for fitted in (True, False):
            mine = [row for row in rows if (row in known) == fitted]
            pooled[fitted] += mine
            yield from set_targets(
                *(NAME, benchmark, SOURCE, mine, 6.0),
                fitted=fitted,
                by="median",
                held_out=split.held_out_label,
            )
    for fitted, mine in pooled.items():
        yield from pooled_targets(mine, fitted=fitted)


def pooled_targets(rows: Sequence[StepRow], *, fitted: bool) -> Iterator[Target]:
    """Return the median error of rows of several benchmarks, and how many are within 15 %."""
    sizes = np.abs([row.error for row in rows])
    kind = "errors known" if fitted else "held out"
    note = f"{len(rows)} rows; largest error {100 * sizes.max():.0f} %"
    median, near = 100 * float(np.median(sizes)), 100 * float(np.mean(sizes <= _NEAR))
    yield Target(
        *(NAME, f"all benchmarks, {kind}: median error of the step", None, "%", SOURCE),
        *(median, 6.0, "value"),
        fitted=fitted,
        note=note,
    )
    yield Target(
        *(NAME, f"all benchmarks, {kind}: rows within 15 %", 100.0, "%", SOURCE),
        *(near, 10.0, "points"),
        fitted=fitted,
        note=note,
    )


def scaling_targets(rows: Sequence[StepRow]) -> Iterator[Target]:
    """Return how the step on more H100 compares with that on the fewest, as a share of it."""
    steps = {int(row.part.split()[1]): row for row in rows if row.part.startswith("H100 ")}
    fewest = steps.pop(min(steps))
    for ranks, row in sorted(steps.items()):
        yield Target(
            NAME,
            f"405B: step on {ranks} H100 over that on {fewest.part.split()[1]}",
            100 * row.measured / fewest.measured,
            "%",
            SOURCE,
            weft=100 * row.predicted / fewest.predicted,
            allowed=3.0,
            fitted=row.part in STEPS_405B.fitted,
        )


@kept
def submitted_rows(folder: Path, benchmark: str) -> Iterator[StepRow]:
    """Predict the rows of a benchmark whose layout is known; those of tinygrad are left out."""
    with (folder / STEPS_405B.folder).open() as file:
        for row in csv.DictReader(file):
            if row["benchmark"] != benchmark or row["submitter"] == "tinycorp":
                continue
            if benchmark != "bert" and not row["tp"]:
                continue
            ranks = int(row["num_gpus"])
            machine = submitted_machine(row["accelerator"], ranks)
            job = Job(benchmark, _MODELS[benchmark](row), ranks, (), "mlperf")
            found = predicted_job(job, machine)
            part = f"{row['accelerator']} {ranks}"
            yield StepRow.of(part, row["submitter"], float(row["step_seconds"]), found, job.stack)


def model_405b(row: dict[str, str]) -> Transformer:
    """Return Llama 3.1 405B with the layout of a row."""
    return replace(
        MODELS["llama-405b"],
        batch=int(row["global_batch"]),
        micro_batch=int(row["micro_batch"]),
        seq=int(row["seq_len"]),
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        interleave=int(row["vp"]),
        cp=int(row["cp"]),
        sp=True,
        tp_overlap=True,
        zero=1,
        math="fp8",
        count_ends=True,
    )


def _lora(row: dict[str, str]) -> Transformer:
    """LLaMA-2 70B with adapters of rank 16 on attention; AMD recomputes some layers."""
    tp = int(row["tp"])
    return replace(
        MODELS["llama-2-70b"],
        batch=int(row["global_batch"]),
        micro_batch=1,
        seq=int(row["seq_len"]),
        tp=tp,
        cp=int(row["cp"]),
        sp=tp > 1,
        tp_overlap=tp > 1,
        math="fp8",
        lora=16,
        recompute=row["recompute"] or "none",
        recompute_layers=int(row["recompute_layers"] or 0),
    )


def _bert(row: dict[str, str]) -> Transformer:
    """BERT large with samples packed by two into 512 tokens, as submitters publish it.

    By NVIDIA's program of v3.1 (training_results_v3.1 @f33f94442050): 15 % of the tokens are masked
    and scored. Gradients are clipped, and reduced behind the backward pass: only configs named
    "clipafter" overlap them, and no known one of v5.0 is. On one node each rank updates a share, on
    several gradients are summed whole (full_ar). Evaluations are not in these steps: they are timed
    from eval_stop to the next eval_start.
    """
    return replace(
        MODELS["bert-large"],
        batch=int(row["global_batch"]),
        seq=256,
        scored=38,
        dtype="fp16",
        clip=True,
        zero=1 if row["nodes"] == "1" else 0,
        overlap_grad=False,
        overlap_param=False,
    )


_MODELS = {"llama31_405b": model_405b, "llama2_70b_lora": _lora, "bert": _bert}


def submitted_machine(device: str, ranks: int) -> Platform:
    """Return the machine of a submission: nodes of eight, or racks."""
    if device == "GB200":
        size = _WHOLE_RACK if ranks % _WHOLE_RACK == 0 else _RACK
        rack = platform("gb200-nvl72").resized(min(ranks, size))
        return rack if ranks <= size else rack.cluster(ranks // size)
    node = platform(_NODES[device])
    return node.resized(ranks) if ranks <= 8 else node.cluster(ranks // 8)
