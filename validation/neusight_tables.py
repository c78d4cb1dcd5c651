"""Operators of PyTorch in fp32, as NeuSight measured them on A100, V100 and MI210."""

from ast import literal_eval
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from validation.kernel_tables import Study, rows_of, study
from weft.hardware import Device, Flops, platform

SOURCE = "NeuSight (ASPLOS 2025), sitar-lab/NeuSight @6945927d9afc, MIT"

_NEUSIGHT = {
    "a100": ("train", "NVIDIA_A100-PCIE-40GB"),
    "v100": ("train", "Tesla_V100-PCIE-32GB"),
    "mi210": ("amdtest", "MI210"),
}
_OPERATORS = {"gemm": "linear", "bmm": "bmm", "softmax": "softmax", "norm": "ln"}
_SIDES = {"batch": "B", "m": "M", "n": "N", "k": "K"}
_ROWS = {"rows": "B", "width": "H"}


def neusight_studies(folder: Path, family: str) -> list[Study]:
    """Read an operator in fp32 on the devices of NeuSight; every row is a shape of its own."""
    found = []
    for name, (kind, there) in _NEUSIGHT.items():
        path = folder / "neusight" / "ops" / f"{kind}_{_OPERATORS[family]}_{there}.csv.gz"
        if path.is_file():
            rows = list(rows_of(path))
            names = _SIDES if family in ("gemm", "bmm") else _ROWS
            columns = {key: np.array([float(r[at]) for r in rows]) for key, at in names.items()}
            seconds = np.array([float(r["Latency"]) for r in rows]) / 1e3
            shape = tuple(names)
            found.append(study(family, _pcie(name), "fp32", columns, seconds, shape, SOURCE))
    return found


def _pcie(name: str) -> Device:
    """Return the card that NeuSight measured: A100 with 40 GB, V100 for PCIe, MI210."""
    found = platform(f"{name}-{4 if name == 'mi210' else 8}").require_device()
    memory = {"a100": 1555e9}.get(name, found.memory_rated)
    fp32 = {"v100": 14.03e12}.get(name, found.flops["fp32"].rated)
    return replace(found, memory_rated=memory, flops={**found.flops, "fp32": Flops(fp32, fp32)})


_LABELS = {
    "a100": "NVIDIA_A100-PCIE-40GB",
    "v100": "Tesla_V100-PCIE-32GB",
    "mi210": "AMD_Instinct_MI210",
}
# What reads its operands once and writes its result once. Dropout does nothing in inference.
_ELEMENTWISE = ("add>", "mul>", "truediv>", "sub>", "method pow", "method tanh", "contiguous")


def elementwise_studies(folder: Path) -> list[Study]:
    """Read the elementwise operators of the models that NeuSight ran, by the bytes they move."""
    found = []
    for name, there in _LABELS.items():
        files = sorted((folder / "neusight" / "label" / there).glob("*.csv.gz"))
        rows = [each for path in files for each in _moved(path)]
        nbytes, seconds = np.array(rows, float).T
        columns = {"nbytes": nbytes}
        found.append(
            study("elementwise", _pcie(name), "fp32", columns, seconds, ("nbytes",), SOURCE)
        )
    return found


def _moved(path: Path) -> Iterator[tuple[float, float]]:
    """Yield the bytes of fp32 that each elementwise operator of a model moves, and its seconds."""
    for row in rows_of(path):
        if any(word in row["target"] for word in _ELEMENTWISE):
            elements = _elements(row)
            if elements:
                yield 4.0 * elements, float(row["fw_latency"]) / 1e3


def _elements(row: Mapping[str, str]) -> int:
    """Count elements read and written; numbers among the operands are not read, 0 if all are."""
    result = int(prod(literal_eval(row["output_shape"])))
    if result == 1:
        return 0
    read = [prod(shape) for shape in literal_eval(row["input_shapes"])]
    return result + sum(int(each) for each in read if each > 1)
