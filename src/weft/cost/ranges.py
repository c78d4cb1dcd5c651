"""The one model of ranges: how far measurements lie from a price in four of five cases.

A deviation is a logarithm of measured over predicted, below and above. A range joins the terms that
apply, each the width that residuals of its own kind had (``catalogue/ranges.toml``, written by
``python -m validation.fit_ranges``):

    a kernel      shapes that its fit was not shown, in quadrature with tables of other authors
                  and versions; instead of the first, or added to it: another dtype, a sibling
    a collective  other machines, networks and versions of the same library: a share of what its
                  bytes take at the rate of large ones, and another of all else, its overhead
    a step        kernels and collectives together, the software stack, the host, and how noisy
                  the machine was when it was calibrated

Independent errors add as squares and so shrink over many ops; what a table, a device or a stack has
wrong is common to all ops and does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, hypot, log, log1p
from typing import TYPE_CHECKING

from weft.hardware.files import CATALOGUE, read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weft.hardware.measured import MeasuredNoise

FILE = CATALOGUE / "ranges.toml"
OTHER = "other"  # the entry of a group for names that no residual is known of
# A quartile lies 0.674 standard deviations from the middle, four of five values within 1.282: half
# of the distance between the quartiles, times their ratio.
_FROM_QUARTILES = 0.95
_MOST_FOREIGN = 0.9  # of the cores: no calibration of less says anything


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far below and above a price four of five measurements lie at most, as logarithms."""

    down: float = 0.0
    up: float = 0.0

    @classmethod
    def between(cls, low: float, high: float) -> Deviation:
        """Return the deviation to two multiples of a price, one below it and one above."""
        return cls(max(0.0, -log(low)), max(0.0, log(high)))

    def joined(self, *others: Deviation) -> Deviation:
        """Add independent deviations as squares."""
        each = (self, *others)
        return Deviation(hypot(*(d.down for d in each)), hypot(*(d.up for d in each)))

    def times(self, factor: float) -> Deviation:
        """Return a deviation that is so many times as wide."""
        return Deviation(factor * self.down, factor * self.up)

    @property
    def factors(self) -> tuple[float, float]:
        """The ends of the range, as multiples of the price."""
        return exp(-self.down), exp(self.up)


@lru_cache
def range_term(group: str, name: str) -> Deviation:
    """Return a recorded term; that of ``other`` names where there is none of this one."""
    found = _entry(group, name)
    return Deviation(found["down"], found["up"])


def divided_term(group: str, name: str) -> tuple[Deviation, Deviation]:
    """Return a term as what each shape has by itself, and what all shapes have in common."""
    term, common = range_term(group, name), _entry(group, name).get("common", 1.0)
    return term.times((1 - common**2) ** 0.5), term.times(common)


def collective_term(name: str, overhead: float) -> Deviation:
    """Return the term of a collective of which ``overhead`` is the share that bytes do not take.

    Rates of links are known better than latencies and protocols, which versions change. Both
    parts err independently.
    """
    rate = range_term("collectives", name)
    extra = overhead * _entry("collectives", name)["overhead"]
    return rate.times(1 - overhead).joined(Deviation(extra, extra))


@lru_cache
def _entry(group: str, name: str) -> Mapping[str, float]:
    entries = read_toml(FILE)[group]
    found: Mapping[str, float] = entries[name if name in entries else OTHER]
    return found


def calibration_noise(noise: MeasuredNoise | None) -> Deviation:
    """Return how far a noisy calibration may be off from the machine as it is another time.

    A core that others have for a share of the time takes 1 / (1 - share) times as long, then or
    now; the probe that was repeated says what else moved.
    """
    if noise is None:
        return Deviation()
    others = -log1p(-min(noise.foreign, _MOST_FOREIGN))
    both = hypot(others, _FROM_QUARTILES * log1p(noise.spread))
    return Deviation(both, both)
