"""Corrections of cost models: linear on a coarse grid, or between the points of a sweep.

The points of a sweep are few and anywhere, so what lies between them is the mean of a Gaussian
process: each pulls towards what was measured the kernels that have sides within a few octaves and
are bound by the same.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from weft.hardware.kernel_fits import correction_table, grid_axes
from weft.hardware.measured import Correction, PointCorrection

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Predicted = Callable[[Mapping[str, float]], Floats]


def corrections(correction: Correction, columns: Mapping[str, Floats]) -> Floats:
    """Read the logarithm of measured / formula off the grid, one a row of the columns."""
    corners, weights = corners_of(grid_axes(correction.grid), columns)
    total: Floats = (_table(correction)[corners] * weights).sum(axis=0)
    return total


@lru_cache(maxsize=256)
def _table(correction: Correction) -> Floats:
    return correction_table(correction).ravel()


def corners_of(axes: Mapping[str, Floats], columns: Mapping[str, Floats]) -> tuple[Whole, Floats]:
    """Return the knots around every row, as places in the flat table, and their weights."""
    rows = len(next(iter(columns.values())))
    places, weights = np.zeros((1, rows), np.int64), np.ones((1, rows))
    for name, knots in axes.items():
        left, share = _between(columns[name], knots)
        places = np.concatenate([places * len(knots) + left, places * len(knots) + left + 1])
        weights = np.concatenate([weights * (1 - share), weights * share])
    return places, weights


def _between(values: Floats, knots: Floats) -> tuple[Whole, Floats]:
    """Return the knot before each value, and how far it is to the next; outside, the last one."""
    at = np.clip(np.log2(np.maximum(values, 2.0 ** knots[0])), knots[0], knots[-1])
    left = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    return left, (at - knots[left]) / (knots[left + 1] - knots[left])


def point_corrections(
    found: PointCorrection,
    columns: Mapping[str, Floats],
    predicted: Predicted,
    coefficients: Mapping[str, float],
) -> Floats:
    """Read the logarithm of measured / formula between the points of a sweep."""
    bound = elasticities(found.shares, predicted, coefficients)
    rows = np.hstack([log_rows(found.columns, columns), bound]) / np.asarray(found.scales)
    points, weights = np.array(found.points), np.array(found.weights)
    parts = [likeness(rows[at : at + _ROWS], points) @ weights for at in range(0, len(rows), _ROWS)]
    return np.concatenate(parts)


_ROWS = 4096  # priced at once, so that what is computed stays in the caches


def log_rows(names: Sequence[str], columns: Mapping[str, Floats]) -> Floats:
    """Return the logarithms of some columns, a row a kernel."""
    return np.stack([np.log2(np.maximum(columns[name], 2.0**-9)) for name in names], axis=1)


def elasticities(
    names: Sequence[str], predicted: Predicted, coefficients: Mapping[str, float]
) -> Floats:
    """Return by how many percent prices grow with a percent of each coefficient, a row a kernel.

    This is what a kernel is bound by: 0.9 of the memory and 0.1 of the launch, for example.
    """
    before = predicted(coefficients)
    found: Floats = np.zeros((len(before), len(names)))
    for at, name in enumerate(names):
        more = predicted({**coefficients, name: coefficients[name] * np.exp(_NUDGE)})
        found[:, at] = np.log(more / before) / _NUDGE
    return found


_NUDGE = 0.05


def likeness(one: Floats, other: Floats) -> Floats:
    """Return how much rows of both have in common: 1 at one place, falling (Matern 3/2)."""
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1) - 2 * one @ other.T
    apart = np.sqrt(3 * np.maximum(squares, 0.0))
    alike: Floats = (1 + apart) * np.exp(-apart)
    return alike
