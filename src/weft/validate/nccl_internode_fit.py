"""Fit NCCL between nodes to logs of nccl-tests, and score the logs that were held out."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from weft.cost.nccl_internode import NodeNetwork, internode_seconds
from weft.hardware import platform
from weft.validate.law_fit import Range, fit_law
from weft.validate.nccl_tables import read_nccl_tests
from weft.validate.splits import NCCL_BETWEEN_NODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weft.validate.kernel_tables import Floats

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
class InternodeStudy:
    """Cells as ``fit_law`` reads them."""

    cells: tuple[Measured, ...]

    @property
    def seconds(self) -> Floats:
        """What was measured."""
        return np.array([cell.seconds for cell in self.cells])

    def predicted(self, law: Mapping[str, float]) -> Floats:
        """Price every cell by a law."""
        return np.array([internode_seconds(c.network, c.kind, c.nbytes, law) for c in self.cells])


def read_logs(folder: Path, names: Iterable[str]) -> tuple[Measured, ...]:
    """Read the logs of some numbers of nodes and GPUs, such as ``N2_G8``."""
    return tuple(cell for name in names for cell in _read(folder, name))


def _read(folder: Path, name: str) -> Iterable[Measured]:
    match = re.fullmatch(r"N(\d+)_G(\d+)", name)
    assert match is not None
    nodes, gpus = int(match[1]), int(match[2])
    machine = platform(NODE)
    assert machine.nic is not None
    network = NodeNetwork(nodes, gpus, machine.nic.rate, machine.levels[0].rate)
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for path in sorted((folder / NCCL_BETWEEN_NODES.folder).glob(f"*/*{name}[_.]*")):
        for cell in read_nccl_tests(path, nodes * gpus, VERSION):
            times[_KINDS.get(cell.collective, cell.collective), cell.nbytes].append(cell.seconds)
    for (kind, nbytes), found in sorted(times.items()):
        yield Measured(name, network, kind, nbytes, median(found), tuple(found))


def fitted_law(folder: Path) -> dict[str, float]:
    """Fit the law to the logs that are not held out."""
    return fit_law([InternodeStudy(read_logs(folder, NCCL_BETWEEN_NODES.fitted))], RANGES)


def errors_by_kind(cells: Iterable[Measured], law: Mapping[str, float]) -> dict[str, list[float]]:
    """Return relative errors of a law, by collective."""
    errors: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        said = internode_seconds(cell.network, cell.kind, cell.nbytes, law)
        errors[cell.kind].append(said / cell.seconds - 1)
    return dict(errors)
