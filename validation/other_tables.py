"""Tables that nothing was fitted to: what other authors measured on the same devices."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from validation.kernel_tables import Study, rows_of, study
from weft.hardware import platform

VIDUR = "Vidur's profiles, microsoft/vidur @7d47513363ec, MIT"
DEEPBENCH = "DeepBench, baidu-research/DeepBench @da81ba782073, Apache-2.0"


def vidur_products(folder: Path) -> Study:
    """Read the projections of LLaMA layers on A100 in fp16, by tokens and tensor parallelism."""
    files = sorted((folder / "vidur" / "compute" / "a100").glob("*.mlp.csv.gz"))
    rows = np.array([each for path in files for each in _projections(path)])
    m, n, k, seconds = rows.T
    device = platform("a100-8").require_device()
    columns = {"m": m, "n": n, "k": k}
    return study("gemm", device, "fp16", columns, seconds, ("n", "k"), VIDUR)


def _projections(path: Path) -> Iterator[tuple[float, float, float, float]]:
    for row in rows_of(path):
        tokens, parts = float(row["num_tokens"]), float(row["num_tensor_parallel_workers"])
        hidden, inner = float(row["n_embd"]), float(row["n_expanded_embd"]) / parts
        heads = float(row["n_embd"]) / float(row["n_head"])
        own, shared = float(row["n_head"]) / parts, max(float(row["n_kv_head"]) / parts, 1.0)
        gated = 2.0 if row["use_gated_mlp"] == "True" else 1.0
        for name, n, k in (
            ("attn_pre_proj", heads * (own + 2 * shared), hidden),
            ("attn_post_proj", hidden, heads * own),
            ("mlp_up_proj", gated * inner, hidden),
            ("mlp_down_proj", hidden, inner),
        ):
            yield tokens, n, k, float(row[f"time_stats.{name}.median"]) / 1e3


def deepbench_products(
    folder: Path, card: str = "V100", applications: tuple[str, ...] = ()
) -> list[Study]:
    """Read matrix products on V100 or T4 in fp32 and, with fp16 operands, on tensor cores.

    With ``applications`` they are those of these alone.
    """
    with (folder / "deepbench" / f"NV_{card}_gemm.csv").open(encoding="utf-8") as lines:
        rows = [
            row for row in csv.DictReader(lines) if row["app"] in (applications or [row["app"]])
        ]
    device = platform(f"{card.lower()}-8").require_device()
    found = []
    for precision, dtype in (("Float", "fp32"), ("16 bit", "fp16")):
        # Where a product was not measured there is a remark in the place of its time.
        mine = [
            row
            for row in rows
            if row["precision"].startswith(precision) and row["time_ms"][:1].isdigit()
        ]
        columns = {key: np.array([float(row[key]) for row in mine]) for key in "mnk"}
        seconds = np.array([float(row["time_ms"]) for row in mine]) / 1e3
        found.append(study("gemm", device, dtype, columns, seconds, ("n", "k"), DEEPBENCH))
    return found
