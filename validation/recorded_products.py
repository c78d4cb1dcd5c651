"""Kernels in recorded steps on MI300X, the only measured ones of it at hand, and on H100.

Products are read off TraceLens' reports, attention and elementwise kernels off the traces.
"""

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from validation.kernel_tables import Study, study
from validation.splits import RECORDED_MI300X
from weft.calibration.cost_model_fit import Range, fit_coefficients
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
    """Fit one coefficient, the share of the flops of all devices, to the shapes of a model."""
    known = find_fit(ANY, "gemm", "bf16")
    assert known is not None
    ranges = {key: Range(value, value, value, 0.0) for key, value in known.coefficients.items()}
    ranges["flops"] = Range(0.5, 0.2, 1.0, 0.5)
    (shown,) = (
        each
        for name in RECORDED_MI300X.fitted
        for each in recorded_products(folder, name)
        if each.dtype == "bf16"
    )
    coefficients = fit_coefficients([shown], ranges)
    errors = shown.predicted(coefficients) / shown.seconds - 1
    unseen = recorded_products(folder, RECORDED_MI300X.held_out[0], fewest=0.0)
    left = np.concatenate([each.predicted(coefficients) / each.seconds - 1 for each in unseen])
    scores = FitErrors(
        len(errors), geomean_error(errors), within_20(errors), shapes=geomean_error(left)
    )
    return KernelFit("gemm", "bf16", coefficients, known.low, known.high, SOURCE, scores)


class RecordedKernel(NamedTuple):
    """A kernel of a trace with the operator that launched it: sides and dtypes of its operands."""

    operator: str
    dims: list[list[int]]
    dtypes: list[str]
    name: str
    seconds: float


def recorded_kernels(folder: Path, name: str) -> Iterator[RecordedKernel]:
    """Read the kernels of a trace: the median of each kernel and operator with its operands."""
    path = folder / RECORDED_MI300X.folder / f"{name}.json.gz"
    events = msgspec.json.decode(gzip.decompress(path.read_bytes()))["traceEvents"]
    operators: dict[Any, dict[str, Any]] = {
        each["args"].get("External id"): each for each in events if each.get("cat") == "cpu_op"
    }
    found: dict[str, list[tuple[RecordedKernel, float]]] = defaultdict(list)
    for each in events:
        operator = operators.get(each.get("args", {}).get("External id"))
        if each.get("cat") == "kernel" and operator is not None:
            args = operator["args"]
            dims, dtypes = args.get("Input Dims", []), args.get("Input type", [])
            one = RecordedKernel(operator["name"], dims, dtypes, each["name"], each["dur"] / 1e6)
            found[str(one[:4])].append((one, one.seconds))
    for same in found.values():
        yield same[0][0]._replace(seconds=median(seconds for _, seconds in same))


_SDPA = "aten::_flash_attention_forward"


def recorded_attention(folder: Path, name: str, on: str) -> Study:
    """Read the attention of a trace's decoder, which is causal, by torch's flash kernel."""
    rows = []
    for each in recorded_kernels(folder, name):
        if each.operator == _SDPA:
            (batch, queries, heads, width), (_, keys, shared, _) = each.dims[:2]
            rows.append((batch, heads, shared, queries, keys, width, each.seconds))
    names = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim")
    *sides, seconds = np.array(rows, float).T
    columns = dict(zip(names, sides, strict=True))
    device = platform(on).require_device()
    return study("attention", device, "bf16", columns, seconds, names, SOURCE, "flash2")


_BYTES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2}
# Operators that read each operand once and write one result of the broadcast shape.
_ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in ("add", "add_", "sub", "mul", "mul_", "div", "pow", "neg", "silu", "gelu", "relu")
)


def recorded_elementwise(folder: Path, name: str, on: str, *, contiguous: bool = True) -> Study:
    """Read the elementwise kernels of a trace; contiguous ones are those that torch vectorizes."""
    rows = []
    for each in recorded_kernels(folder, name):
        sizes = [_BYTES.get(dtype, 0) for dtype in each.dtypes]
        known = each.operator in _ELEMENTWISE and any(sizes)
        if known and ("vectorized_elementwise" in each.name) == contiguous:
            read = sum(prod(dims) * size for dims, size in zip(each.dims, sizes, strict=True))
            most = max(map(prod, each.dims))
            rows.append((most, read + most * max(sizes), each.seconds))
    elements, nbytes, seconds = np.array(rows, float).T
    device = platform(on).require_device()
    columns = {"nbytes": nbytes} | ({} if contiguous else {"elements": elements})
    family = "elementwise" if contiguous else "strided"
    return study(family, device, "bf16", columns, seconds, ("nbytes",), SOURCE)
