"""Fit coefficients and corrections to tables, and compute their errors on rows held back.

Coefficients are fitted to some thousand rows that are in neither part that is held back: not in the
random tenth, not in the tenth of the shapes. Its correction is fitted twice more without either
part, which gives the errors, and once to all rows, which gives what the catalogue keeps.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from validation.grid_fit import fit_grid
from validation.kernel_tables import Floats, Mask, Study
from weft.calibration.coefficient_ranges import grid_of, ranges_of
from weft.calibration.cost_model_fit import fit_coefficients
from weft.cost.fit_errors import geomean_error, within_20
from weft.cost.grid import corrections
from weft.hardware.kernel_fits import SMALLEST_STEP, grid_axes, packed
from weft.hardware.measured import Correction, FitErrors, KernelFit

ROWS = 2000  # of a table that coefficients are fitted to: more change them by less than their use
_COARSE = 0.03
SHARED_ROWS = 1000  # of each table, where one model is fitted to several devices


def fitted_coefficients(studies: Sequence[Study], rows: int = ROWS) -> dict[str, float]:
    """Fit one set of coefficients to the rows of all studies that are not held back."""
    shown = [each.part(~(each.tenth | each.tenth_of_shapes)).sample(rows) for each in studies]
    return fit_coefficients(shown, ranges_of(shown[0].kind.fit_family, shown[0].dtype))


def unexplained(study: Study, coefficients: Mapping[str, float]) -> Floats:
    """Return the logarithm of measured / formula for every row."""
    found: Floats = np.log(study.seconds / study.predicted(coefficients))
    return found


def errors_of(left: Floats) -> Floats:
    """Turn logarithms of measured / predicted into relative errors of what was predicted."""
    return np.expm1(-left)


def correction_of(study: Study, left: Floats, grid: str) -> Correction:
    """Fit the grid to the residuals, as the catalogue keeps it.

    Its step is about half of what even the grid leaves of matrix products: finer ones would write
    down noise. Other families need less.
    """
    table = fit_grid(study.places, left, grid_axes(grid))
    if grid != "gemm":
        return packed(table, grid, _COARSE)
    exact = packed(table, grid)
    noise = float(np.median(np.abs(left - corrections(exact, study.places))))
    return packed(table, grid, float(np.clip(0.5 * noise, SMALLEST_STEP, _COARSE / 2)))


def left_of(study: Study, left: Floats, grid: str, held: Mask) -> Floats:
    """Return what a correction that was not shown the ``held`` rows leaves of them."""
    if not grid:
        return left[held]
    shown = study.part(~held)
    fitted = correction_of(shown, left[~held], grid)
    return left[held] - corrections(fitted, study.part(held).places)


def fitted(study: Study, coefficients: Mapping[str, float] | None = None) -> KernelFit:
    """Fit a study: coefficients, correction, errors, and the range of four of five unseen rows."""
    coefficients = fitted_coefficients([study]) if coefficients is None else coefficients
    left, grid = unexplained(study, coefficients), grid_of(study.family, study.dtype)
    shapes = left_of(study, left, grid, study.tenth_of_shapes)
    errors = _errors(study, left, shapes)
    low, high = unseen_range(study, left, grid)
    return KernelFit(
        family=study.family,
        dtype=study.dtype,
        coefficients=coefficients,
        low=round(float(min(low, 1.0)), 4),
        high=round(float(max(high, 1.0)), 4),
        source=study.source,
        errors=errors,
        correction=correction_of(study, left, grid) if grid else None,
        version=study.version,
    )


def unseen_range(study: Study, left: Floats, grid: str) -> tuple[float, float]:
    """Return the multiples of a price between which four of five rows of unseen shapes lie.

    Unseen by the correction: those of the tenth that is held back, or, where these are few, of all
    shapes, a fifth left out at a time.
    """
    tenth = study.tenth_of_shapes
    parts = [tenth] if study.part(tenth).num_shapes >= _FEW_SHAPES else study.fifths_of_shapes
    unseen = np.concatenate([left_of(study, left, grid, part) for part in parts])
    low, high = np.exp(np.quantile(unseen, (0.1, 0.9)))
    return float(low), float(high)


_FEW_SHAPES = 20


def study_errors(study: Study, coefficients: Mapping[str, float]) -> FitErrors:
    """Return the errors of coefficients, and of corrections on what they were not shown."""
    left, grid = unexplained(study, coefficients), grid_of(study.family, study.dtype)
    return _errors(study, left, left_of(study, left, grid, study.tenth_of_shapes))


def _errors(study: Study, left: Floats, shapes: Floats) -> FitErrors:
    grid = grid_of(study.family, study.dtype)
    return FitErrors(
        rows=len(left),
        formula=geomean_error(errors_of(left)),
        within_20=within_20(errors_of(left)),
        random_tenth=geomean_error(errors_of(left_of(study, left, grid, study.tenth))),
        shapes=geomean_error(errors_of(shapes)),
    )


def fitted_to_all(studies: Sequence[Study]) -> KernelFit:
    """Fit one model to several devices; its error and range are of devices that were left out.

    Libraries of vendors differ more than their devices do: it is the model of NVIDIA's devices, if
    there are some. Devices of AMD are capped by what they achieve, or priced by one that is alike.
    """
    own = [each for each in studies if each.device.vendor == "NVIDIA"] or studies
    coefficients = fitted_coefficients(own, SHARED_ROWS)
    left = np.concatenate([unexplained(each, coefficients) for each in own])
    unseen = devices_left_out(studies)
    apart = np.concatenate(list(unseen.values())) if unseen else None
    low, high = _ALONE if apart is None else np.exp(np.quantile(apart, (0.1, 0.9)))
    return KernelFit(
        family=studies[0].family,
        dtype=studies[0].dtype,
        coefficients=coefficients,
        low=round(float(min(low, 1.0)), 4),
        high=round(float(max(high, 1.0)), 4),
        source=studies[0].source,
        errors=FitErrors(
            rows=len(left),
            formula=geomean_error(errors_of(left)),
            within_20=within_20(errors_of(left)),
            device=None if apart is None else geomean_error(errors_of(apart)),
            devices={name: geomean_error(errors_of(each)) for name, each in unseen.items()},
        ),
    )


_ALONE = (0.6, 1.6)  # of a model that one device alone has shown: what others are off by, and more


def devices_left_out(studies: Sequence[Study]) -> dict[str, Floats]:
    """Return what is left of each device by a model that was fitted to the others alone."""
    if len(studies) == 1:
        return {}
    found = {}
    for name in dict.fromkeys(each.device.name for each in studies):
        mine = [each for each in studies if each.device.name == name]
        coefficients = fitted_coefficients(without(studies, mine[0]), SHARED_ROWS)
        found[name] = np.concatenate([unexplained(each, coefficients) for each in mine])
    return found


def without(studies: Iterable[Study], left_out: Study) -> list[Study]:
    """Return the studies of the other devices of the same vendor, or of all if it has no other."""
    others = [each for each in studies if each.device.name != left_out.device.name]
    same = [each for each in others if each.device.vendor == left_out.device.vendor]
    return same or others
