"""Calibration of torch on this machine, as parts of the platform ``here``.

Cost models of ops are fitted to single ops (``torch_op_grid``); overheads of the host, collectives
of Gloo and weft and the overhead of DDP are measured. See docs/calibrate.md.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from weft.calibration import machine_calibration
from weft.calibration.microbenchmarks import Measured, codec_rates
from weft.calibration.noise import NoiseMonitor
from weft.calibration.steady_memory import forked_ranks
from weft.calibration.torch_collective_times import SIZES, Curves, Wrapped, time_collectives
from weft.calibration.torch_host_overhead import time_host
from weft.calibration.torch_lookup_rates import measure_embedding
from weft.calibration.torch_op_grid import Sample, samples
from weft.calibration.torch_op_times import OpTime, time_ops
from weft.cost.fit_errors import geomean_error
from weft.cost.least_squares import smallest_errors
from weft.cost.nccl import on_curve
from weft.cost.terms import TERMS, op_seconds
from weft.errors import WeftError
from weft.hardware import Lookups, Platform, Source, platform
from weft.hardware.curves import Errors, Fit, Library
from weft.hardware.files import here_path
from weft.hardware.measured import Ddp, OpCostModel, TorchHost
from weft.runtime.world import World

_LEAST = 1e-6  # seconds of what is left of a wrapped step
_REPEATS = 3  # of an op: a fit sees many ops
_WIDE = 0.8  # share of held-back ops between low and high


@dataclass
class TorchFound:
    """What the steps of a calibration found, one after another."""

    op_models: list[OpCostModel] = field(default_factory=list)
    host: TorchHost = field(default_factory=TorchHost)
    curves: Curves = field(default_factory=dict)
    wrapped: Wrapped = field(default_factory=dict)
    lookups: dict[str, Lookups] = field(default_factory=dict)

    def put_into(self, platform: Platform, source: str) -> Platform:
        """Return the platform with all measurements."""
        libraries = tuple(
            _library(name, self.curves, source) for name in dict.fromkeys(n for n, _ in self.curves)
        )
        device = replace(
            platform.require_device(),
            op_models=tuple(replace(each, source=source) for each in self.op_models),
            lookups=self.lookups,
        )
        sources = {
            f"device.lookups.{name}.{key.name}": Source("fitted", source)
            for name, each in self.lookups.items()
            for key in fields(each)
        }
        found = replace(
            platform, device=device, libraries=libraries, sources={**platform.sources, **sources}
        )
        host = replace(self.host, source=source, ddp=_ddp(found, self.wrapped))
        return replace(found, torch=host)


def measure_ops(found: TorchFound) -> None:
    """Time the ops of the grid in one thread on each of two ranks, and fit their cost models."""
    every = samples()
    times = time_ops([each.call for each in every], repeats=_REPEATS)
    found.op_models += fitted_op_models(every, times, 1)


def measure_all_cores(found: TorchFound) -> None:
    """Time some ops with as many threads as there are cores, on one rank."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        return
    every = [each for each in samples() if each.family in ("gemm", "elementwise")]
    times = time_ops([each.call for each in every], repeats=_REPEATS, threads=cores)
    found.op_models += fitted_op_models(every, times, cores)


def measure_host(found: TorchFound) -> None:
    """Measure what torch spends around ops."""
    found.host = time_host()


def measure_collectives(found: TorchFound) -> None:
    """Time collectives and DDP by both libraries."""
    found.curves, found.wrapped = time_collectives()


def measure_lookups(found: TorchFound) -> None:
    """Time lookups in embedding tables, on two ranks at once where there are cores for them."""
    ranks = min(2, len(os.sched_getaffinity(0)))
    found.lookups = measure_embedding(seconds=_FOR_LOOKUPS, ranks=ranks)


STEPS: tuple[tuple[str, Callable[[TorchFound], None]], ...] = (
    ("ops of torch", measure_ops),
    ("ops of torch on all cores", measure_all_cores),
    ("the host of torch", measure_host),
    ("collectives of Gloo and weft", measure_collectives),
    ("lookups in tables", measure_lookups),
)
_FOR_LOOKUPS = 4.0  # seconds


# Seconds after which a calibration is made anew before it is relied upon. On a shared machine
# memory rates drift: gains predicted from a calibration of an hour before were wrong by 16
# percentage points, from a new one by at most 2.
_OLD = 3600.0


def is_current(here: Platform, age: float) -> bool:
    """Return whether a calibration is recent, complete and of this torch version."""
    known = here.torch is not None and here.torch.version == torch.__version__
    return known and bool(here.libraries and here.require_device().op_models) and age < _OLD


def current_here() -> Platform | None:
    """Return the calibration of this machine, None if there is no current one."""
    try:
        found, age = platform("here"), time.time() - here_path().stat().st_mtime
    except (OSError, WeftError):
        return None
    return found if is_current(found, age) else None


_LOADED = ("torch", "torch.nn.parallel", "weft.calibration.torch_calibration")
Step = tuple[str, Callable[[], None]]


def measured_here(
    shown: Callable[[Sequence[Step]], Iterable[Step]] = tuple, *, all_cores: bool = True
) -> Platform:
    """Measure this machine; ``shown`` hands the steps on as they come.

    Ops on ``all_cores`` of one rank are for jobs of a single rank only.
    """
    measured: dict[str, Measured] = {}
    found, watch = TorchFound(), NoiseMonitor()

    def put(name: str, act: Callable[[World], Measured]) -> None:
        measured[name] = machine_calibration.measure_step(act)

    steps: list[Step] = [(name, partial(put, name, act)) for name, act in machine_calibration.STEPS]
    steps += [
        (name, partial(measure, found))
        for name, measure in STEPS
        if all_cores or measure is not measure_all_cores
    ]
    with forked_ranks(_LOADED):
        for _, act in shown(steps):
            act()
            watch.look()
    platform = machine_calibration.calibrated(measured)
    platform = found.put_into(platform, platform.description)
    return replace(platform, noise=watch.found(), codecs=codec_rates())


def fitted_op_models(
    every: Sequence[Sample], times: Sequence[OpTime], threads: int
) -> list[OpCostModel]:
    """Fit one cost model per family to what its ops took with their data in memory."""
    families: dict[str, list[tuple[Sample, float]]] = defaultdict(list)
    for sample, found in zip(every, times, strict=True):
        families[sample.family].append((sample, found.cold))
    return [_op_model(family, rows, threads) for family, rows in families.items()]


def _op_model(family: str, rows: list[tuple[Sample, float]], threads: int) -> OpCostModel:
    """Fit to all; the error is that of fits to two thirds on the other third, in turn."""
    ratios: list[float] = []
    for turn in range(3):
        kept = [row for index, row in enumerate(rows) if index % 3 != turn]
        left = [row for index, row in enumerate(rows) if index % 3 == turn]
        model = _fit(family, kept, threads)
        ratios += [
            seconds / float(op_seconds(model, _columns([sample]))[0]) for sample, seconds in left
        ]
    low, high = np.quantile(ratios, [(1 - _WIDE) / 2, (1 + _WIDE) / 2])
    return replace(
        _fit(family, rows, threads),
        error=float(f"{geomean_error(1 / np.array(ratios) - 1):.3g}"),
        low=float(f"{min(low, 1.0):.3g}"),
        high=float(f"{max(high, 1.0):.3g}"),
    )


def _fit(family: str, rows: list[tuple[Sample, float]], threads: int) -> OpCostModel:
    counts = TERMS[family](_columns([sample for sample, _ in rows]))
    found = smallest_errors(np.stack(list(counts.values()), 1), np.array([s for _, s in rows]))
    terms = {
        name: float(f"{value:.4g}") for name, value in zip(counts, found, strict=True) if value
    }
    return OpCostModel(family, threads, terms, len(rows), 0.0, 1.0, 1.0)


def _columns(every: Sequence[Sample]) -> dict[str, Any]:
    names = every[0].columns
    columns = {name: np.array([float(s.columns[name]) for s in every]) for name in names}
    return {"window": np.zeros(len(every)), **columns}


def _library(name: str, curves: Curves, source: str) -> Library:
    made = torch.__version__.partition("+")[0] if name == "gloo" else version("weft")
    fits = tuple(
        Fit(
            *(made, kind, "any", (2,)),
            first=tuple((nbytes / 2, float(f"{s:.4g}")) for nbytes, s in rising(curve)),
            step=(),
            in_switch=(),
            in_switch_from=0,
            errors=Errors(len(curve), 0.0, 0.0, 1.0),
        )
        for (library, kind), curve in curves.items()
        if library == name
    )
    return Library(name, "here", "measured", source, "here", min(SIZES), max(SIZES), fits)


def rising(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Make a curve rise: more bytes take no less, so a hill was caused by other processes.

    >>> rising([(1, 5.0), (2, 3.0), (4, 6.0)])
    [(1, 3.0), (2, 3.0), (4, 6.0)]
    """
    least = np.minimum.accumulate([seconds for _, seconds in curve][::-1])[::-1]
    return [(nbytes, float(s)) for (nbytes, _), s in zip(curve, least, strict=True)]


def _ddp(platform: Platform, wrapped: Wrapped) -> dict[str, Ddp]:
    """Fit the overhead of DDP per step, parameter and byte."""
    found = {}
    for library in platform.libraries:
        fit = next(each for each in library.fits if each.collective == "all_reduce")
        rows, left = [], []
        for (name, count, nbytes), seconds in wrapped.items():
            if name == library.name:
                total = count * nbytes
                rows.append((1.0, float(count), float(total)))
                left.append(max(seconds - on_curve(fit.first, total / 2), _LEAST))
        terms = smallest_errors(np.array(rows), np.array(left))
        found[library.name] = Ddp(*(float(f"{each:.4g}") for each in terms))
    return found
