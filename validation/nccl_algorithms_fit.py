"""Fit NCCL's algorithms to logs of nccl-tests, and score the logs that were held out."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from validation.nccl_tables import read_nccl_tests
from validation.splits import NCCL_BETWEEN_NODES
from weft.calibration.cost_model_fit import Range, fit_coefficients
from weft.cost.fit_errors import geomean_error
from weft.cost.nccl import overhead_share
from weft.cost.nccl_algorithms import NodeNetwork, algorithm_seconds
from weft.cost.ranges import collective_term
from weft.hardware import platform
from weft.hardware.curves import AlgorithmFit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from validation.kernel_tables import Floats

SOURCE = "nccl-tests of an H100 cluster, xxrjun/nccl-tests-cluster @455de4f8dee2, Apache-2.0"
VERSION = "2.29.2"
NODE = "h100-8"
_KINDS = {"sendrecv": "send"}
RANGES = {
    "share": Range(0.97, 0.8, 1.0, 0.1),
    "entry": Range(8.4e-6, 1e-6, 1e-4, 0.3),
    "hop": Range(1.4e-5, 1e-6, 1e-4, 1.0),
    "connection": Range(25e9, 1e9, 1e11, 0.5),
    "sharpness": Range(3.0, 1.0, 12.0, 0.5),
    "crowding": Range(0.1, 1e-3, 1.0, 1.0),
    "message": Range(2e-5, 1e-6, 1e-3, 0.5),
    "turn": Range(1e-5, 1e-7, 1e-3, 1.0),
    "local": Range(1e-5, 1e-6, 1e-4, 0.3),
    "channel": Range(20e9, 1e9, 1e11, 0.5),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One collective of one size: the median over logs of the same numbers of nodes and GPUs."""

    log: str
    network: NodeNetwork
    kind: str
    nbytes: int
    seconds: float
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LogStudy:
    """Cells as ``fit_coefficients`` reads them."""

    cells: tuple[Measured, ...]

    @property
    def seconds(self) -> Floats:
        """What was measured."""
        return np.array([cell.seconds for cell in self.cells])

    def predicted(self, coefficients: Mapping[str, float]) -> Floats:
        """Predict the seconds of every cell."""
        return np.array(
            [algorithm_seconds(c.network, c.kind, c.nbytes, coefficients) for c in self.cells]
        )


def read_logs(folder: Path, names: Iterable[str]) -> tuple[Measured, ...]:
    """Read the logs of some numbers of nodes and GPUs, such as ``N2_G8``."""
    return tuple(cell for name in names for cell in _read(folder, name))


def _read(folder: Path, name: str) -> Iterable[Measured]:
    match = re.fullmatch(r"N(\d+)_G(\d+)", name)
    assert match is not None
    nodes, gpus = int(match[1]), int(match[2])
    machine = platform(NODE)
    assert machine.nic is not None
    rate = machine.levels[0].rate
    network = NodeNetwork(nodes, gpus, machine.nic.rate, rate, rate)
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for path in sorted((folder / NCCL_BETWEEN_NODES.folder).glob(f"*/*{name}[_.]*")):
        for cell in read_nccl_tests(path, nodes * gpus, VERSION):
            times[_KINDS.get(cell.collective, cell.collective), cell.nbytes].append(cell.seconds)
    for (kind, nbytes), found in sorted(times.items()):
        yield Measured(name, network, kind, nbytes, median(found), tuple(found))


def local_messages(folder: Path, gpus: int) -> tuple[Measured, ...]:
    """Read send and receive inside a node; the other collectives there have curves."""
    return tuple(cell for cell in _read(folder, f"N1_G{gpus}") if cell.kind == "send")


def fitted_algorithms(folder: Path) -> AlgorithmFit:
    """Fit the coefficients to the logs that are not held out, and score both parts."""
    shown = read_logs(folder, NCCL_BETWEEN_NODES.fitted) + local_messages(folder, 8)
    coefficients = fit_coefficients([LogStudy(shown)], RANGES)
    unseen = read_logs(folder, NCCL_BETWEEN_NODES.held_out)
    return AlgorithmFit(
        "nccl",
        VERSION,
        SOURCE,
        coefficients,
        fitted={
            kind: geomean_error(each) for kind, each in errors_by_kind(shown, coefficients).items()
        },
        held_out={
            kind: geomean_error(each) for kind, each in errors_by_kind(unseen, coefficients).items()
        },
    )


def errors_by_kind(
    cells: Iterable[Measured], coefficients: Mapping[str, float]
) -> dict[str, list[float]]:
    """Return relative errors by collective."""
    errors: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        said = algorithm_seconds(cell.network, cell.kind, cell.nbytes, coefficients)
        errors[cell.kind].append(said / cell.seconds - 1)
    return dict(errors)


def inside_range(cells: Iterable[Measured], fit: AlgorithmFit) -> float:
    """Return the share of measured times that lie in the range of their price."""
    within = []
    for cell in cells:
        seconds_of = seconds_by(cell, fit.coefficients)
        overhead = overhead_share(seconds_of, cell.nbytes)
        low, high = collective_term("nccl", overhead).factors
        within.append(low <= cell.seconds / seconds_of(cell.nbytes) <= high)
    return float(np.mean(within))


def seconds_by(cell: Measured, coefficients: Mapping[str, float]) -> Callable[[int], float]:
    """Return the model of a cell's collective by its size."""
    return partial(algorithm_seconds, cell.network, cell.kind, coefficients=coefficients)
