"""How often rows of a table are looked up, and which lookups find their row in a cache.

A Spectrum sorts the rows of a table by how often a batch asks for them: classes of rows that are
asked for about equally often. It comes from a distribution (uniform, Zipf), from a sample of
indices, or from the 17 bins of reuse that arXiv 2404.12674 describes. Whatever its origin, one
law gives the lookups that miss a cache of so many rows (Che, Tung and Wang, 2002): a row is
still there if it was asked for within the time in which the cache fills.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.errors import UsageError

Floats = NDArray[np.float64]

BINS = 17  # (0, 1], (1, 2], (2, 4] .. (2^14, 2^15] and above
_CLASSES = 48  # of rows in a Zipf distribution, each with ranks up to a constant times the last's
_ROUNDS = 40  # of bisection


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Classes of rows, one line a table: how many rows, and how often each is asked for.

    ``observed`` rows were all asked for; others only may be, as chance has it.
    """

    rows: Floats
    counts: Floats
    observed: bool = False

    @property
    def lookups(self) -> Floats:
        """How many lookups a batch has."""
        total: Floats = (self.rows * self.counts).sum(axis=1)
        return total

    @property
    def unique(self) -> Floats:
        """How many different rows a batch asks for."""
        return self.misses(np.full(len(self.rows), np.inf))

    def misses(self, capacity: Floats) -> Floats:
        """Lookups that do not find their row in a cache of so many rows, empty at first."""
        kept = self._kept(capacity)[:, None]
        gone = np.exp(-self.counts * kept)
        each = (1 - gone) + self.counts * (1 - kept) * gone
        if self.observed:
            each = np.maximum(each, np.minimum(1.0, self.counts))
        total: Floats = (self.rows * each).sum(axis=1)
        return total

    def _kept(self, capacity: Floats) -> Floats:
        """The share of a batch for which a row stays: until the cache is full of others."""
        low, high = np.zeros(len(self.rows)), np.ones(len(self.rows))
        if (self._filled(high) <= capacity).all():
            return high
        full = self._filled(high) <= capacity
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            fits = self._filled(middle) <= capacity
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return np.where(full, 1.0, low)

    def _filled(self, share: Floats) -> Floats:
        filled: Floats = (self.rows * -np.expm1(-self.counts * share[:, None])).sum(axis=1)
        return filled


def zipf(rows: Floats, lookups: Floats, exponent: Floats) -> Spectrum:
    """Rows whose share falls with a power of their rank; the power 0 is uniform.

    Ranks are put into classes that grow geometrically, so that a table of any size has few.
    """
    edges = np.maximum(rows, 1)[:, None] ** np.linspace(0, 1, _CLASSES + 1)
    edges = np.floor(edges)
    edges[:, -1] = np.maximum(rows, 1)
    edges[:, 0] = 0
    number = np.maximum(np.diff(edges, axis=1), 0)
    middle = (edges[:, 1:] + edges[:, :-1] + 1) / 2  # the mean rank of a class, counted from one
    weight = np.maximum(middle, 1.0) ** -np.asarray(exponent, float)[:, None]
    share = weight / np.maximum((number * weight).sum(axis=1, keepdims=True), 1e-300)
    return Spectrum(number, share * lookups[:, None])


def from_bins(shares: Sequence[float], lookups: float) -> Spectrum:
    """Rows by the 17 bins of reuse: the share of unique rows that were asked for so often.

    What a bin's rows were asked for in the mean is not recorded: the middle of the bin is
    taken, and all are scaled to the number of lookups.
    """
    found = np.asarray(shares, float)
    if len(found) != BINS or (found < 0).any() or not found.sum() > 0:
        raise UsageError(
            f"reuse needs {BINS} shares of zero or more, not {len(found)} with the smallest "
            f"{found.min() if len(found) else 0:g}",
            "Give the share of unique rows asked for once, twice, 3 to 4 times, and so on.",
        )
    middle = np.array([1.0, 2.0, *(0.75 * 2.0**k + 0.5 for k in range(2, BINS))])
    unique = lookups / (found / found.sum() * middle).sum()
    return Spectrum((found / found.sum() * unique)[None], middle[None], observed=True)


def from_sample(indices: Sequence[int] | NDArray[np.int64]) -> Spectrum:
    """Rows as a batch really asked for them."""
    values = np.asarray(indices)
    if not values.size or (values < 0).any():
        raise UsageError(
            "a sample of indices must hold some, and none below zero",
            "Give the rows that one batch looks up in one table.",
        )
    counts, rows = np.unique(np.unique(values, return_counts=True)[1], return_counts=True)
    return Spectrum(rows.astype(float)[None], counts.astype(float)[None], observed=True)


def reuse_bins(spectrum: Spectrum) -> Floats:
    """Sort the rows that were asked for into the 17 bins, as shares of all of them."""
    bins = np.clip(np.ceil(np.log2(np.maximum(spectrum.counts, 1.0))), 0, BINS - 1).astype(int)
    shares = np.zeros((len(spectrum.rows), BINS))
    asked = spectrum.rows * (1.0 if spectrum.observed else -np.expm1(-spectrum.counts))
    for line, (places, rows) in enumerate(zip(bins, asked, strict=True)):
        np.add.at(shares[line], places, rows)
    found: Floats = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    return found
