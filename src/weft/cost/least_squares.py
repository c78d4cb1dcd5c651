"""Numbers of zero or more that come nearest to what was measured."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDS = 4
_FLAT = 0.01  # errors under 1 % weigh alike: measured tables repeat themselves no better


def smallest_errors(rows: Floats, seconds: Floats) -> Floats:
    """Return the rises with the smallest relative errors, absolute rather than squared."""
    weight = 1 / seconds
    found = np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        weighted = rows * weight[:, None]
        scale = np.sqrt((weighted**2).sum(axis=0)) + 1e-300
        found = non_negative_least_squares(weighted / scale, seconds * weight) / scale
        off = np.maximum(np.abs(rows @ found / seconds - 1), _FLAT)
        weight = 1 / (seconds * np.sqrt(off))
    return found


def non_negative_least_squares(rows: Floats, wanted: Floats) -> Floats:
    """Minimise |rows x - wanted| over x of zero or more (Lawson and Hanson, 1974)."""
    normal, right = rows.T @ rows, rows.T @ wanted
    normal = normal + np.eye(len(right)) * 1e-12 * np.trace(normal) / len(right)
    x, used = np.zeros(len(right)), np.zeros(len(right), bool)
    for _ in range(3 * len(right)):
        gain = np.where(used, -np.inf, right - normal @ x)
        best = int(np.argmax(gain))
        if gain[best] <= 1e-10 * np.abs(right).max():
            break
        used[best] = True
        x = _solve_active_set(normal, right, x, used)
    return x


def _solve_active_set(normal: Floats, right: Floats, x: Floats, used: NDArray[np.bool_]) -> Floats:
    """Solve for the ``used`` unknowns, dropping those that would turn negative."""
    while used.any():
        goal, inner = np.zeros_like(x), np.flatnonzero(used)
        goal[inner] = np.linalg.solve(normal[np.ix_(inner, inner)], right[inner])
        negative = inner[goal[inner] <= 0]
        if not len(negative):
            return goal
        part = np.min(x[negative] / (x[negative] - goal[negative] + 1e-300))
        x = x + part * (goal - x)
        x[negative[np.argmin(x[negative])]] = 0.0
        used &= x > 0
    return np.zeros_like(x)
