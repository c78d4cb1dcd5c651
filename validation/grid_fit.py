"""Fit what a formula leaves unexplained on a grid: near the rows, smooth where there are few."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from weft.cost.grid import corners_of

Floats = NDArray[np.float64]
Axes = Mapping[str, Floats]

_SMOOTH = 0.01  # weight of a bend between knots against a row
_ROUNDS, _STEPS = 7, 60
_FLAT = 0.02  # errors far above it hardly count: tables have outliers, and means are geometric


def fit_grid(columns: Mapping[str, Floats], left: Floats, axes: Axes) -> Floats:
    """Return the values at the knots with the smallest errors, by conjugate gradients.

    Errors count as squares first, then as they are, and at last as a Cauchy distribution has
    them, each round starting from the last.
    """
    shape = tuple(len(each) for each in axes.values())
    places, weights = corners_of(axes, columns)
    size, flat = int(np.prod(shape)), places.ravel()
    found, rows = np.zeros(size), np.ones(len(left))

    def read(values: Floats) -> Floats:
        total: Floats = (values[places] * weights).sum(axis=0)
        return total

    def gather(values: Floats) -> Floats:
        return np.bincount(flat, (weights * values).ravel(), size).astype(np.float64)

    for done in range(_ROUNDS):
        weight = rows

        def normal(values: Floats, weight: Floats = weight) -> Floats:
            total: Floats = gather(weight * read(values)) + _SMOOTH * _bending(values, shape)
            return total

        found = _solve(normal, gather(rows * left), found)
        off = np.abs(left - read(found))
        absolute = 1 / np.maximum(off / _FLAT, 0.5)
        rows = absolute if done < _ROUNDS // 2 else 1 / (1 + (off / _FLAT) ** 2)
    return found.reshape(shape)


def _solve(apply: Callable[[Floats], Floats], right: Floats, start: Floats) -> Floats:
    """Solve apply(x) = right for a symmetric apply, by conjugate gradients."""
    x, left = start, right - apply(start)
    way, size = left.copy(), float(left @ left)
    for _ in range(_STEPS):
        if size < 1e-10:
            break
        ahead = apply(way)
        far = size / float(way @ ahead)
        x, left = x + far * way, left - far * ahead
        size, before = float(left @ left), size
        way = left + size / before * way
    return x


def _bending(values: Floats, shape: tuple[int, ...]) -> Floats:
    """Return the gradient of the squared second differences, plus a small size penalty."""
    table = values.reshape(shape)
    total = 1e-3 * table
    for axis in range(len(shape)):
        bend = np.moveaxis(np.diff(table, 2, axis=axis), axis, 0)
        along = np.moveaxis(total, axis, 0)
        along[:-2] += bend
        along[1:-1] -= 2 * bend
        along[2:] += bend
    return total.ravel()
