"""How far fits are off: many relative errors as one number."""

from collections.abc import Iterable

import numpy as np

_SMALLEST = 4e-4  # as in arXiv 2404.12674: a perfect hit must not decide a geometric mean


def geomean_error(errors: Iterable[float]) -> float:
    """Return the geometric mean of relative errors."""
    absolute = np.maximum(np.abs(np.fromiter(errors, float)), _SMALLEST)
    return float(np.exp(np.log(absolute).mean()))


def joined_error(cells: Iterable[int], errors: Iterable[float]) -> float:
    """Return the geometric mean over all cells from the means of its parts."""
    return float(np.exp(np.average(np.log(list(errors)), weights=list(cells))))


def within_20(errors: Iterable[float]) -> float:
    """Return the share of relative errors of 20 % or less."""
    return float(np.mean(np.abs(np.fromiter(errors, float)) <= 0.2))
