"""Fit the coefficients of a cost model to measured tables: small errors, plausible values.

Every coefficient is looked for as a logarithm, inside a range, and pulled towards where it started
as loosely as its spread says: what the tables say nothing about stays where it was. Nothing is
random.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_FLAT = 0.03  # errors below it count as squares, above as they are: tables have outliers
_ROUNDS = 30  # of Levenberg and Marquardt
_NUDGE = 1e-3
_PRIOR_WEIGHT = 0.15  # weight of the start against one row
_LARGEST_STEP = 0.7


class Observations(Protocol):
    """What was measured, and what a cost model predicts for it."""

    @property
    def seconds(self) -> Floats:
        """What was measured, a row each."""

    def predicted(self, coefficients: Mapping[str, float]) -> Floats:
        """Predict the seconds of every row."""


class Range(NamedTuple):
    """Where a number starts, between which bounds it lies, and by how many e-folds it may drift."""

    start: float
    least: float
    most: float
    spread: float = 1.0


def fit_coefficients(
    studies: Sequence[Observations], ranges: Mapping[str, Range]
) -> dict[str, float]:
    """Return the coefficients with the smallest errors (Levenberg and Marquardt, reweighted)."""
    free = [key for key, each in ranges.items() if each.spread > 0]
    origin = np.log([ranges[key].start for key in free])
    pull = _PRIOR_WEIGHT / np.array([ranges[key].spread for key in free]) ** 2
    wanted = np.concatenate([np.log(each.seconds) for each in studies])

    def residual(place: Floats) -> Floats:
        coefficients = _coefficients(ranges, free, place)
        said = np.concatenate([np.log(each.predicted(coefficients)) for each in studies])
        found: Floats = wanted - said
        return found

    def total(place: Floats, left: Floats) -> float:
        return float(np.sqrt(left**2 + _FLAT**2).sum() + 0.5 * (pull * (place - origin) ** 2).sum())

    place, damping = origin.copy(), 1e-2
    left = residual(place)
    cost = total(place, left)
    for _ in range(_ROUNDS):
        slopes = np.stack(
            [(left - residual(place + e)) / _NUDGE for e in np.eye(len(free)) * _NUDGE], 1
        )
        weight = 1 / np.sqrt(left**2 + _FLAT**2)
        normal = slopes.T @ (slopes * weight[:, None]) + np.diag(pull)
        right = slopes.T @ (weight * left) - pull * (place - origin)
        for _ in range(6):
            scale = np.diag(np.diag(normal) + 1e-6 * np.trace(normal))
            step = np.clip(
                np.linalg.solve(normal + damping * scale, right), -_LARGEST_STEP, _LARGEST_STEP
            )
            new = residual(place + step)
            if total(place + step, new) < cost:
                break
            damping *= 4
        else:
            break
        gained = cost - total(place + step, new)
        place, left, cost, damping = place + step, new, cost - gained, damping / 3
        if gained < 5e-5 * cost:
            break
    return {key: float(f"{value:.4g}") for key, value in _coefficients(ranges, free, place).items()}


def _coefficients(ranges: Mapping[str, Range], free: list[str], place: Floats) -> dict[str, float]:
    coefficients = {key: each.start for key, each in ranges.items()}
    for key, value in zip(free, np.exp(place), strict=True):
        coefficients[key] = float(np.clip(value, ranges[key].least, ranges[key].most))
    return coefficients
