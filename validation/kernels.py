"""Every family of kernels, three ways: a device left out, shapes left out, and after a sweep.

*Device*: the coefficients are fitted to the other devices and get the datasheet of the one left out
(GB200, A40: the fits of B200 and A100, their siblings). *Shapes*: coefficients and correction of
the device, on whole shapes that neither was shown. *Sweep*: nothing but 200 rows of the device's
table, chosen as ``weft calibrate --sweep`` chooses them and fitted as it fits them; the other rows
are scored.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from validation.kernel_fit import (
    SHARED_ROWS,
    errors_of,
    fitted_coefficients,
    left_of,
    unexplained,
    without,
)
from validation.kernel_studies import FAMILY_NAMES, studies_by_device
from validation.kernel_tables import FITTED_SIBLINGS, Floats, Study, by_sibling, gemm_studies
from validation.nccl_tables import data_folder
from validation.splits import VIDUR_LAYERS
from validation.target import Target
from validation.vidur_layers import layer_studies
from weft.calibration.coefficient_ranges import grid_of, ranges_of
from weft.calibration.kernel_sweep import POINTS, fit_sweep, spread_points, sweep_places
from weft.cost.fit_errors import geomean_error
from weft.cost.grid import point_corrections
from weft.cost.price import price_columns
from weft.hardware import platform
from weft.hardware.kernel_fits import find_fit

NAME = "kernels"
QUESTION = (
    "How far off is each family of kernels: a device, shapes, and all after a sweep left out?"
)

LIMITS = {"device": 12.0, "shapes": 4.0, "sweep": 4.0}
_BIAS = 5.0
_WHAT = {
    "device": "device left out",
    "shapes": "shapes left out",
    "sweep": f"after a sweep of {POINTS} points",
}
_SCORED = 20_000  # rows of a table


def targets() -> Iterator[Target]:
    """Compute the errors of every table, and of each family and dtype over all of its tables."""
    folder = data_folder()
    if folder is None:
        return
    for tables in _tables(folder):
        together: dict[str, list[Floats]] = defaultdict(list)
        for study, others in tables:
            for way, left in _ways(study, others):
                together[way].append(left)
                name = f"{study.family} {study.dtype} {study.device.name}: {_WHAT[way]}"
                yield _target(name, study, left, -1.0)
        study = tables[0][0]
        for way, lefts in together.items():
            left = np.concatenate(lefts)
            name = f"{study.family} {study.dtype}: {_WHAT[way]}"
            yield _target(name, study, left, LIMITS[way])
            bias = 100 * float(np.expm1(-np.mean(left)))
            yield Target(
                NAME, f"{name}, bias", 0.0, "%", study.source, bias, _BIAS, "points",
            )  # fmt: skip


def _tables(folder: Path) -> Iterator[list[tuple[Study, list[Study] | None]]]:
    """Yield the tables of each family and dtype, each with those of other devices.

    None: no cost model of other devices was fitted to this table, to no part of it.
    """
    for family in FAMILY_NAMES:
        for studies in studies_by_device(folder, family)["any"]:
            tables: list[tuple[Study, list[Study] | None]] = []
            tables += [(each, without(studies, each)) for each in studies]
            unseen = layer_studies(folder, VIDUR_LAYERS.held_out)
            for name in FITTED_SIBLINGS if family == "gemm" else ():
                unseen += gemm_studies(folder, name)
            kind = studies[0].family, studies[0].dtype
            tables += [(each, None) for each in unseen if (each.family, each.dtype) == kind]
            yield tables


def _ways(study: Study, others: list[Study] | None) -> Iterator[tuple[str, Floats]]:
    """Yield what each way leaves of a table, as logarithms of measured / predicted."""
    fit = find_fit(study.device.name, study.family, study.dtype)
    if others:
        yield "device", unexplained(study.sample(_SCORED), fitted_coefficients(others, SHARED_ROWS))
    elif study.device.name in _SIBLINGS:
        scored = study.sample(_SCORED)
        device = by_sibling(platform(_SIBLINGS[study.device.name]).require_device())
        found = price_columns(study.family, scored.columns, device, study.dtype)
        yield "device", np.log(scored.seconds / found.seconds)
    if fit is not None:
        grid = grid_of(study.family, study.dtype)
        left = unexplained(study, fit.coefficients)
        unseen = others is None and study.device.name not in FITTED_SIBLINGS
        held = np.ones(len(left), bool) if unseen else study.tenth_of_shapes
        yield "shapes", left_of(study, left, grid, held)
    yield "sweep", _after_sweep(study)


_SIBLINGS = {"gb200": "gb200-nvl72", "a40": "a40-8"}


def _after_sweep(study: Study) -> Floats:
    """Fit the chosen rows as a user's sweep is fitted, and return the residuals of the others."""
    places = sweep_places(study.kind, study.columns)
    chosen = spread_points(places, min(POINTS, len(study.seconds) // 2))
    shown = study.part(chosen)
    found = fit_sweep(
        shown,
        sweep_places(study.kind, shown.columns),
        ranges_of(study.kind.fit_family, study.dtype),
    )
    rest = study.part(np.setdiff1d(np.arange(len(study.seconds)), chosen)).sample(_SCORED)
    left = unexplained(rest, found.coefficients)
    if found.points is None:
        return left
    places = sweep_places(study.kind, rest.columns)
    return left - point_corrections(found.points, places, rest.predicted, found.coefficients)


def _target(name: str, study: Study, left: Floats, limit: float) -> Target:
    error = 100 * geomean_error(errors_of(left))
    bias = 100 * float(np.expm1(-np.mean(left)))
    note = f"bias {bias:+.1f} %, {len(left)} rows"
    return Target(NAME, name, None, "% error", study.source, error, limit, "value", note=note)
