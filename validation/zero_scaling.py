"""How far a 7B model scales with ZeRO-1 groups of 8 and of all ranks: InternEvo on 8 to 1,024 A100.

A ratio is the throughput of a GPU over that on 8 GPUs. What its optimizer does is known from its
source: gradients in buckets of 512 MB during the backward pass, and whole tensors that are
broadcast by their owners behind the step.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from validation.nccl_tables import data_folder
from validation.splits import STEPS_ZERO
from validation.target import Target
from weft.hardware import platform
from weft.models.job import Job
from weft.models.transformer import Transformer
from weft.planner.job_prediction import predict_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from weft.hardware import Platform

NAME = "zero_scaling"
QUESTION = "How far does ZeRO-1 scale, over all ranks or inside a node?"
SOURCE = "InternLM/InternEvo @c628a8c87411, doc/en/train_performance.md"
_NIC_RATE = 6.25e9  # bytes a second and GPU: four NICs of 100 Gbit/s for eight GPUs
_USUAL_MICRO = 4  # micro batches of both tables where they overlap


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """A row of the tables: its part, its series, the GPUs, and seconds of a token."""

    part: str
    series: str
    ranks: int
    tokens: int
    measured: float
    predicted: float


def targets() -> Iterator[Target]:
    """Compare ratios of throughputs; report every part's largest difference in points."""
    folder = data_folder()
    if folder is None:
        return
    rows = list(scaling_rows(folder))
    base = {row.series: row for row in rows if row.ranks == 8}
    for part in (*STEPS_ZERO.fitted, *STEPS_ZERO.held_out):
        points = {}
        for row in rows:
            if row.part != part or row.ranks == 8:
                continue
            first = base[row.series]
            found = first.predicted / row.predicted - first.measured / row.measured
            points[f"{row.series}, {row.ranks} GPUs, {row.tokens:,} tokens"] = 100 * found
        worst = max(points, key=lambda name: abs(points[name]))
        size = float(np.mean([abs(each) for each in points.values()]))
        yield Target(
            NAME,
            f"{part}: mean difference of the ratio of throughputs",
            None,
            "points",
            SOURCE,
            weft=size,
            allowed=5.0,
            error_in="value",
            fitted=part in STEPS_ZERO.fitted,
            note=f"{len(points)} rows; largest {points[worst]:+.1f} ({worst})",
        )


def scaling_rows(folder: Path) -> Iterator[ScalingRow]:
    """Predict every row that does not repeat another."""
    with (folder / STEPS_ZERO.folder).open() as file:
        for row in csv.DictReader(file):
            ranks, recomputed = int(row["gpus"]), row["activation_ckpt"] == "TRUE"
            usual = int(row["micro_num"]) == _USUAL_MICRO
            if row["table"] == "throughput":
                part, series = "throughput", f"zero1 {row['zero1']}"
            elif recomputed:
                part, series = "flops, recomputed", "recomputed"
            elif ranks == 8 or not usual:
                part, series = "flops, fewer micro batches", "kept"
            else:
                continue
            tokens = int(row["global_tokens"])
            model = Transformer(
                hidden=4096,
                layers=32,
                heads=32,
                ffn=11008,
                vocab=103168,
                seq=2048,
                gated=True,
                rotary=True,
                clip=True,
                batch=tokens // 2048,
                micro_batch=int(row["micro_batch"]),
                recompute="full" if recomputed else "none",
                zero=1,
                shard=0 if row["zero1"] == "-1" else 8,
                bucket=512 << 20,
                param_broadcast=True,
            )
            job = Job("internlm-7b", model, ranks, (), "internevo")
            found = predict_job(job, _machine(ranks), anyway=True).seconds
            measured = float(row["step_seconds"])
            each = ranks / tokens
            yield ScalingRow(part, series, ranks, tokens, measured * each, found * each)


def _machine(ranks: int) -> Platform:
    node = platform("a100-8")
    assert node.nic is not None
    slow = replace(node, nic=replace(node.nic, rate=_NIC_RATE, rated=_NIC_RATE))
    return node if ranks == 8 else slow.cluster(ranks // 8)
