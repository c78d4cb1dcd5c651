"""How often rows of a table are looked up, and which lookups find their row in a cache.

A Spectrum sorts the rows of a table by how often a batch asks for them: classes of rows that are
asked for about equally often. It comes from a distribution (uniform, Zipf), from a sample of
indices, or from the 17 bins of reuse that arXiv 2404.12674 describes. Whatever its origin, one
law gives the lookups that miss a cache of so many rows (Che, Tung and Wang, 2002): a row is
still there if it was asked for within the time in which the cache fills.
"""

from __future__ import annotations  # np.random takes 20 ms to load, and annotations would load it

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.errors import UsageError

Floats = NDArray[np.float64]

BINS = 17  # (0, 1], (1, 2], (2, 4] .. (2^14, 2^15] and above
# How often the rows of a bin are asked for: the middle of it, and once, or twice, in the first two.
BIN_COUNTS = np.array([1.0, 2.0, *(0.75 * 2.0**k + 0.5 for k in range(2, BINS))])
_CLASSES = 48  # of rows in a Zipf distribution, each with ranks up to a constant times the last's
_ROUNDS = 24  # of bisection: a share of a batch to less than one of ten million lookups


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Classes of rows, one line a table: how many rows, and how often each is asked for.

    ``observed`` classes hold rows that were all asked for; others only may be, as chance has it.
    """

    rows: Floats
    counts: Floats
    observed: NDArray[np.bool_]

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
        """Return the lookups that miss a cache of so many rows, which is empty at first.

        A row with a mean of c lookups a batch that stays for the share s of it is missed when it
        is first asked for, and again whenever it was not asked for during that share.
        """
        kept = self._kept(capacity)[:, None]
        gone = np.exp(-self.counts * kept)
        each = (1 - gone) + self.counts * (1 - kept) * gone
        each = np.where(self.observed, np.maximum(each, np.minimum(1.0, self.counts)), each)
        total: Floats = (self.rows * each).sum(axis=1)
        return total

    def visited(self, rows: Floats, together: Floats) -> Floats:
        """Return the blocks of ``together`` neighbours, of a table of ``rows``, that are looked up.

        Popular rows lie anywhere, so rows of one block are asked for independently of each other.
        """
        share = np.minimum(self.unique / rows, 1.0)
        inside = np.clip(together, 1.0, rows)
        blocks: Floats = rows / inside * (1 - (1 - share) ** inside)
        return blocks

    def _kept(self, capacity: Floats) -> Floats:
        """Return the share of a batch for which a row stays: until the cache is full of others."""
        kept = np.ones(len(self.rows))
        small = np.flatnonzero(_filled(self.rows, self.counts, kept) > capacity)
        rows, counts, room = self.rows[small], self.counts[small], capacity[small]
        low, high = np.zeros(len(small)), np.ones(len(small))
        for _ in range(_ROUNDS if len(small) else 0):
            middle = (low + high) / 2
            fits = _filled(rows, counts, middle) <= room
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        kept[small] = low
        return kept

    def joined_with(self, other: Spectrum) -> Spectrum:
        """Put the classes of both into one: lines of one of them are empty."""
        parts = [np.broadcast_to(each.observed, each.rows.shape) for each in (self, other)]
        return Spectrum(
            np.hstack([self.rows, other.rows]),
            np.hstack([self.counts, other.counts]),
            np.hstack(parts),
        )


def _filled(rows: Floats, counts: Floats, share: Floats) -> Floats:
    """Return the rows that are looked up at least once in a share of a batch."""
    filled: Floats = (rows * -np.expm1(-counts * share[:, None])).sum(axis=1)
    return filled


def zipf(rows: Floats, lookups: Floats, exponent: Floats) -> Spectrum:
    """Return rows whose share falls with a power of their rank; the power 0 is uniform.

    Ranks are put into classes that grow geometrically, so that a table of any size has few.
    """
    most = np.maximum(rows, 1.0)
    edges = np.floor(most[:, None] ** np.linspace(0, 1, _CLASSES + 1))
    edges[:, 0], edges[:, -1] = 0, most
    number = np.maximum(np.diff(edges, axis=1), 0)
    middle = (edges[:, 1:] + edges[:, :-1] + 1) / 2  # the mean rank of a class, counted from one
    weight = middle ** -np.asarray(exponent, float)[:, None]
    share = weight / (number * weight).sum(axis=1, keepdims=True)
    return Spectrum(number, share * lookups[:, None], np.zeros((1, _CLASSES), bool))


def from_bins(shares: Floats, lookups: Floats) -> Spectrum:
    """Return rows by 17 bins of reuse, a line a table: shares of unique rows looked up so often.

    How often a bin's rows were asked for in the mean is not recorded: the middle of the bin is
    taken, and the number of rows is such that the lookups come out.
    """
    if shares.ndim != 2 or shares.shape[1] != BINS or (shares < 0).any():
        raise UsageError(
            f"reuse needs {BINS} shares of zero or more for every table",
            "Give the share of unique rows asked for once, twice, 3 to 4 times, and so on.",
        )
    total = np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    unique = lookups[:, None] / np.maximum((shares / total * BIN_COUNTS).sum(1, keepdims=True), 1)
    counts = np.broadcast_to(BIN_COUNTS, shares.shape)
    return Spectrum(shares / total * unique, counts, np.ones((1, BINS), bool))


def from_sample(indices: Sequence[int] | NDArray[np.int64]) -> Spectrum:
    """Return the rows of one table as a recorded batch looked them up."""
    values = np.asarray(indices)
    if not values.size or (values < 0).any():
        raise UsageError(
            "a sample of indices must hold some, and none below zero",
            "Give the rows that one batch looks up in one table.",
        )
    counts, rows = np.unique(np.unique(values, return_counts=True)[1], return_counts=True)
    observed = np.ones((1, len(rows)), bool)
    return Spectrum(rows.astype(float)[None], counts.astype(float)[None], observed)


def drawn_indices(
    rows: int, lookups: int, exponent: float, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the rows that a batch looks up, by Zipf's law; popular ones lie anywhere."""
    if not exponent:
        return generator.integers(0, rows, lookups)
    share = np.cumsum(np.arange(1, rows + 1) ** -exponent)
    place = np.searchsorted(share / share[-1], generator.random(lookups))
    return generator.permutation(rows)[np.minimum(place, rows - 1)].astype(np.int64)


def reuse_bins(spectrum: Spectrum) -> Floats:
    """Sort the rows that were asked for into the 17 bins, as shares of all of them."""
    bins = np.clip(np.ceil(np.log2(np.maximum(spectrum.counts, 1.0))), 0, BINS - 1).astype(int)
    asked = spectrum.rows * np.where(spectrum.observed, 1.0, -np.expm1(-spectrum.counts))
    shares = np.zeros((len(spectrum.rows), BINS))
    for line, (places, rows) in enumerate(zip(bins, asked, strict=True)):
        np.add.at(shares[line], places, rows)
    found: Floats = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    return found
