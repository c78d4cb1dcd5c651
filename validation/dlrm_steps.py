"""Steps of DLRM and DLRM-DCNv2: MLPerf Training by HugeCTR, and NVIDIA's examples on one node.

Settings are those of the submitters' and examples' programs: which tables every rank holds, how
others are cut and placed, where the bottom MLP runs, what an update reads and writes.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING

from validation.nccl_tables import data_folder
from validation.splits import STEPS_DLRM, STEPS_DLRM_NVIDIA
from validation.step_rows import StepRow, kept, set_targets
from weft.hardware import platform
from weft.models.dlrm import Dlrm
from weft.models.job import Job
from weft.models.named import DLRMS
from weft.models.tables import Table
from weft.planner.job_prediction import predict_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from validation.target import Target
    from weft.hardware import Platform

NAME = "dlrm_steps"
QUESTION = "How long do steps of DLRM take by HugeCTR and by NVIDIA's examples?"
# What is called unseen was scored three times, see the splits.
_MLPERF = "mlcommons/training_results_v4.0 @6fe954378efe and _v5.0 @0fdc28f01325; scored 3 times"
_EXAMPLES = "NVIDIA/DeepLearningExamples @729963dd47e7; scored twice"
# Tables of less GB, weights and state, are on every rank, by nodes (DP_SHARDING_THRESHOLD of the
# submitters' configurations); a row of fp32 with Adagrad has 1024 bytes.
_REPLICATED = {1: 7812, 2: 12207}
# What a part of a table costs in the exchange over one lookup of a sample: MEM_COMM_BW_RATIO / 4 of
# the configurations of DGX H100, of Blackwell, and of H100 with several nodes.
_EXCHANGE = {"H100": 7 / 4, "B200": 9 / 4, "GB200": 9 / 4}
_EXCHANGE_NODES = 67 / 4
_WIDE = 128
# Rows of the tables of Criteo's terabyte by how often a value must occur: 15 times, 3 times, once;
# as in NVIDIA's and TorchRec's scripts. Popularity as for MLPerf's tables.
_SMALL = (
    *(7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209),
    *(10667, 104, 4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35),
)
_LARGE = (
    *(45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10, 2209),
    *(11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35),
)
_EXTRA = (
    *(227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10),
    *(2209, 11938, 155, 4, 976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36),
)
_SIZES = {"small": _SMALL, "large": _LARGE, "extra large": _EXTRA}


def targets() -> Iterator[Target]:
    """Predict every step of both data sets; report fitted and unseen parts of each apart."""
    folder = data_folder()
    if folder is None:
        return
    for title, source, rows, split in (
        ("DLRM-DCNv2 by HugeCTR", _MLPERF, mlperf_rows(folder), STEPS_DLRM),
        ("DLRM, NVIDIA's examples", _EXAMPLES, example_rows(folder), STEPS_DLRM_NVIDIA),
    ):
        found = list(rows)
        for fitted in (True, False):
            mine = [row for row in found if (row.part in split.fitted) == fitted]
            if mine:
                yield from set_targets(
                    *(NAME, title, source, mine, 12.0),
                    fitted=fitted,
                    by="median",
                    held_out=split.held_out_label,
                )


@kept
def mlperf_rows(folder: Path, parts: Sequence[str] = ()) -> Iterator[StepRow]:
    """Predict submissions with HugeCTR, all or those of some ``parts``."""
    for version in ("v4.0", "v5.0"):
        with (folder / f"mlperf_training_{version}" / "step_times.csv").open() as file:
            for row in csv.DictReader(file):
                if row["benchmark"] != "dlrm_dcnv2":
                    continue
                device = next(d for d in ("GB200", "B200", "H100") if d in row["accelerator"])
                ranks = int(row["nodes"]) * int(row["gpus_per_node"])
                part = f"{version}: {device} {ranks}"
                if parts and part not in parts:
                    continue
                batch = int(row.get("global_batch_size") or row["global_batch"])
                step = row.get("step_seconds") or float(row["step_time_ms"]) * 1e-3
                name = f"{device} {ranks} {row['submitter']}"
                yield _hugectr(part, name, float(step), device, ranks, batch)


def _hugectr(part: str, name: str, seconds: float, device: str, ranks: int, batch: int) -> StepRow:
    """Predict one submission; between nodes of H100 tables are cut inside nodes."""
    if device == "GB200":
        machine = platform("gb200-nvl72").resized(ranks)
    else:
        node = platform(f"{device.lower()}-8")
        machine = node.resized(ranks) if ranks <= 8 else node.cluster(ranks // 8)
    nodes = max(1, ranks // 8) if device == "H100" else 1
    model = replace(
        DLRMS["dlrm-dcnv2"],
        batch=batch // ranks * ranks,
        dtype="fp16",
        optimizer="adagrad",
        fused_relu=True,
        replicated=_REPLICATED[min(nodes, 2)],
        node=8 if nodes > 1 else 0,
        cut=_EXCHANGE_NODES if nodes > 1 else _EXCHANGE[device],
    )
    return _row(part, name, seconds, model, machine, "hugectr")


@kept
def example_rows(folder: Path, parts: Sequence[str] = ()) -> Iterator[StepRow]:
    """Predict NVIDIA's examples, all or those of some ``parts``."""
    with (folder / STEPS_DLRM_NVIDIA.folder).open() as file:
        for row in csv.DictReader(file):
            torch = row["framework"] == "PyTorch"
            part = f"{row['framework']} {row['gpu']}" + f", {row['model']}" * (not torch)
            if parts and part not in parts:
                continue
            ranks = int(row["gpus"])
            node = {"DGX A100": "a100-8", "DGX-1": "v100-8", "DGX-2": "v100-16"}[row["system"]]
            machine = platform(node)
            machine = machine if ranks == machine.num_ranks else machine.resized(ranks)
            model = _example(row)
            name = " ".join((row["system"], row["model"], row["gpus"], row["precision"]))
            seconds = float(row["step_ms"]) * 1e-3
            stack = "deeplearningexamples" + "-tf" * (not torch)
            yield _row(part, name, seconds, model, machine, stack)


def _example(row: dict[str, str]) -> Dlrm:
    """Return the model of a row: TensorFlow exchanges fp32 and runs the bottom MLP everywhere."""
    torch, crossed = row["framework"] == "PyTorch", row["model"] == "DCNv2"
    rows = _SIZES[row["model_size"]]
    return Dlrm(
        tuple(Table(f"table{n}", count, _WIDE, 1.0, 1.05) for n, count in enumerate(rows)),
        batch=int(row["global_batch"]),
        dtype="fp16" if row["precision"] == "amp" else row["precision"],
        cross=512 if crossed else 0,
        bottom_first=torch,
        exchange_dtype="" if torch else "fp32",
        optimizer="adam" if crossed else "sgd",
        fused_interaction=True,
        fused_update=not torch,
    )


def _row(
    part: str, name: str, seconds: float, model: Dlrm, machine: Platform, stack: str
) -> StepRow:
    job = Job(name, model, machine.num_ranks, (), stack)
    return StepRow.of(part, name, seconds, predict_job(job, machine, anyway=True), stack)
