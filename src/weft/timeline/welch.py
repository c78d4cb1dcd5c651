"""Whether two means differ by more than the spread of their samples explains: Welch's t-test."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log, log1p, sqrt
from statistics import fmean, variance

_FLOOR = 1e-3  # of a mean: timers and clock speeds differ by this much even where samples agree
_TERMS, _CLOSE, _TINY = 200, 1e-12, 1e-300  # of the continued fraction
_LEVEL = 0.01  # of significance


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """The difference of two means; ``p`` is None if a side has one sample only."""

    before: float
    after: float
    error: float  # standard error of the difference
    p: float | None  # probability of such a difference between equal means

    @property
    def difference(self) -> float:
        """The increase."""
        return self.after - self.before

    def is_significant(self, tests: int = 1) -> bool:
        """Return whether the means differ, with Bonferroni's correction for ``tests`` of them."""
        return self.p is not None and self.p * tests < _LEVEL


def compare_means(before: Sequence[float], after: Sequence[float]) -> MeanDifference:
    """Compare two samples.

    >>> compare_means([10.0, 10.1, 9.9], [10.05, 9.95, 10.0]).p > 0.5
    True
    >>> compare_means([10.0, 10.1, 9.9], [12.0, 12.1, 11.9]).is_significant()
    True
    """
    one, other = fmean(before), fmean(after)
    if len(before) < 2 or len(after) < 2:
        return MeanDifference(one, other, 0.0, None)
    parts = [
        max(variance(side), (_FLOOR * mean) ** 2) / len(side)
        for side, mean in ((before, one), (after, other))
    ]
    error = sqrt(sum(parts))
    if not error:
        return MeanDifference(one, other, 0.0, 1.0 if one == other else 0.0)
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (before, after), strict=True)
    )
    t = (other - one) / error
    return MeanDifference(one, other, error, _two_sided(t, freedom))


def _two_sided(t: float, freedom: float) -> float:
    """Return the probability that Student's t is farther from zero than ``t``.

    >>> round(_two_sided(2.776445, 4), 4), round(_two_sided(12.7062, 1), 4)
    (0.05, 0.05)
    """
    x = freedom / (freedom + t * t)
    return _incomplete_beta(freedom / 2, 0.5, x)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function by its continued fraction (Lentz)."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    fraction, c, d = 1.0, 1.0, 0.0
    for i in range(_TERMS):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / (1.0 + term * d or _TINY)
        c = 1.0 + term / c or _TINY
        fraction *= c * d
        if abs(1.0 - c * d) < _CLOSE:
            break
    return front * (fraction - 1.0)
