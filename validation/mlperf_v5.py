"""Llama 3.1 405B as MLPerf Training v5.0 submitters ran it, 256 to 2,560 GPUs.

The layout of every row is that of its configuration file; nothing is fitted to its times.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import numpy as np

from validation.nccl_tables import data_folder
from validation.splits import STEPS_405B
from validation.target import Target
from weft.hardware import platform
from weft.models.named import job_of
from weft.planner.job_prediction import predict_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from weft.hardware import Platform

NAME = "mlperf_v5"
QUESTION = "How long does a step of 405B take on other numbers of GPUs, and on another GPU?"
SOURCE = "MLPerf Training v5.0, mlcommons/training_results_v5.0 @0fdc28f01325"
_RACK = 64  # GPUs of an NVL72 rack that a job uses: powers of two; the submitters do not say


def targets() -> Iterator[Target]:
    """Predict every submission of 405B; report the rows, then the unseen ones together."""
    folder = data_folder()
    if folder is None:
        return
    unseen = []
    for part, measured, predicted in sorted(_rows(folder)):
        is_known = part in STEPS_405B.fitted
        unseen += [] if is_known else [abs(predicted / measured - 1)]
        yield Target(NAME, f"405B on {part}", measured, "s", SOURCE, predicted, fitted=is_known)
    yield Target(
        NAME,
        "405B, rows that no change was tried on: median error",
        None,
        "%",
        SOURCE,
        weft=100 * float(np.median(unseen)),
        allowed=6.0,
        error_in="value",
        note=f"{len(unseen)} rows, the largest {100 * max(unseen):.1f} %",
    )


def _rows(folder: Path) -> Iterator[tuple[str, float, float]]:
    with (folder / STEPS_405B.folder).open() as file:
        for row in csv.DictReader(file):
            if row["benchmark"] != "llama31_405b":
                continue
            ranks = int(row["num_gpus"])
            settings = {
                "batch": row["global_batch"],
                "micro_batch": row["micro_batch"],
                "seq": row["seq_len"],
                "tp": row["tp"],
                "pp": row["pp"],
                "vp": row["vp"],
                "cp": row["cp"],
                "sp": "true",
                "tp_overlap": "true",
                "zero": "1",
                "math": "fp8",
                "count_ends": "true",
            }
            job = job_of("llama-405b", ranks, settings)
            found = predict_job(job, _machine(row["accelerator"], ranks), anyway=True)
            part = f"{row['accelerator']} {ranks}"
            yield part, float(row["step_seconds"]), found.seconds


def _machine(device: str, ranks: int) -> Platform:
    if device == "H100":
        return platform(f"h100-8x{ranks // 8}")
    return platform("gb200-nvl72").resized(_RACK).cluster(ranks // _RACK)
