"""Matrix products in recorded steps on MI300X: the only measured kernels of it at hand."""

import csv
from pathlib import Path

import numpy as np

from validation.kernel_tables import Study, study
from validation.splits import RECORDED_MI300X
from weft.calibration.law_fit import Range, fit_law
from weft.cost.fit_errors import geomean_error, within_20
from weft.hardware import platform
from weft.hardware.kernel_fits import ANY, find_fit
from weft.hardware.measured import FitErrors, KernelFit

SOURCE = "TraceLens' report of Qwen1.5-0.5B on MI300X, AMD-AGI/TraceLens @171dd74721ca, MIT"
DTYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}
_FEWEST = 1e9  # flops: smaller ones are all launch


def recorded_products(folder: Path, name: str, *, fewest: float = _FEWEST) -> list[Study]:
    """Read the products of a report: the median of every shape, one Study a dtype."""
    path = folder / "tracelens" / "reference_reports" / f"{name}.GEMM.csv"
    by_dtype: dict[str, list[tuple[float, ...]]] = {}
    with path.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            sides = tuple(float(row[f"param: {side}"]) for side in "BMNK")
            dtype = next(name for key, name in DTYPES.items() if key in row["param: dtype_A_B"])
            if 2 * np.prod(sides) >= fewest and sides[0] == 1:
                cells = (*sides[1:], float(row["Kernel Time (µs)_median"]) / 1e6)
                by_dtype.setdefault(dtype, []).append(cells)
    found = []
    for dtype, rows in by_dtype.items():
        m, n, k, seconds = np.array(rows).T
        on = platform("mi300x-8").require_device()
        columns = {"m": m, "n": n, "k": k}
        found.append(study("gemm", on, dtype, columns, seconds, ("m", "n", "k"), SOURCE))
    return found


def fitted_products(folder: Path) -> KernelFit:
    """Fit one number of the law of all devices, its share of the flops, to shapes of a model."""
    known = find_fit(ANY, "gemm", "bf16")
    assert known is not None
    ranges = {key: Range(value, value, value, 0.0) for key, value in known.law.items()}
    ranges["flops"] = Range(0.5, 0.2, 1.0, 0.5)
    (shown,) = (
        each
        for name in RECORDED_MI300X.fitted
        for each in recorded_products(folder, name)
        if each.dtype == "bf16"
    )
    law = fit_law([shown], ranges)
    errors = shown.predicted(law) / shown.seconds - 1
    unseen = recorded_products(folder, RECORDED_MI300X.held_out[0], fewest=0.0)
    left = np.concatenate([each.predicted(law) / each.seconds - 1 for each in unseen])
    scores = FitErrors(
        len(errors), geomean_error(errors), within_20(errors), shapes=geomean_error(left)
    )
    return KernelFit("gemm", "bf16", law, known.low, known.high, SOURCE, scores)
