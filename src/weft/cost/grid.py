"""Corrections on a coarse grid: values at knots along some columns, linear between them."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from weft.hardware.kernel_fits import Correction, grid_axes

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


def corrections(correction: Correction, columns: Mapping[str, Floats]) -> Floats:
    """Read the logarithm of measured / law off the grid, one a row of the columns."""
    corners, weights = corners_of(grid_axes(correction.grid), columns)
    total: Floats = (_table(correction)[corners] * weights).sum(axis=0)
    return total


@lru_cache(maxsize=256)
def _table(correction: Correction) -> Floats:
    return correction.table().ravel()


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
