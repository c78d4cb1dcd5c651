"""Norms, gated activations and additions of transformer layers in fp16, as Vidur measured them."""

from pathlib import Path

import numpy as np

from validation.kernel_tables import Study, rows_of, study
from validation.other_tables import VIDUR
from validation.splits import VIDUR_LAYERS
from weft.hardware import Device, platform

DTYPE = "bf16"  # as wide as fp16, and the dtype by which coefficients of half precision are known


def layer_studies(folder: Path, tables: tuple[str, ...] = VIDUR_LAYERS.fitted) -> list[Study]:
    """Read the layers of some models, one Study a family and device."""
    found = []
    for name in dict.fromkeys(table.split("/")[0] for table in tables):
        mine = [table for table in tables if table.startswith(f"{name}/")]
        found += _studies(folder, platform(f"{name}-8").require_device(), mine)
    return found


def _studies(folder: Path, device: Device, tables: list[str]) -> list[Study]:
    norms, activations, additions = [], [], []
    for table in tables:
        for row in rows_of(folder / VIDUR_LAYERS.folder / f"{table}.mlp.csv.gz"):
            tokens, hidden = float(row["num_tokens"]), float(row["n_embd"])
            inner = float(row["n_expanded_embd"]) / float(row["num_tensor_parallel_workers"])
            took = {
                key: float(row[f"time_stats.{key}.median"]) / 1e3
                for key in ("input_layernorm", "post_attention_layernorm", "mlp_act", "add")
            }
            norms += [(tokens, hidden, took[key]) for key in took if "norm" in key]
            activations.append((tokens, inner, took["mlp_act"]))
            additions.append((6.0 * tokens * hidden, took["add"]))
    found = []
    for family, rows in (("norm", norms), ("activation", activations)):
        count, width, seconds = np.array(rows).T
        columns = {"rows": count, "width": width}
        found.append(study(family, device, DTYPE, columns, seconds, ("rows", "width"), VIDUR))
    nbytes, seconds = np.array(additions).T
    columns = {"nbytes": nbytes}
    return [*found, study("elementwise", device, DTYPE, columns, seconds, ("nbytes",), VIDUR)]
