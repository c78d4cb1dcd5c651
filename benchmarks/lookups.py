"""Embedding lookups as a benchmark needs them: tables, bags, and values that add up exactly.

Needs numpy alone: the ranks of every peer import it, in environments that lack the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
TURNS = 3  # sets of indices, one call after another: none finds the rows of the last one cached
_VALUES = 251  # a prime, so that neighbours differ
_STEP = 64  # values are multiples of 1/64: sums of them are exact in any order


@dataclass(frozen=True)
class Lookups:
    """``tables`` of equal shape, looked up by all ranks; ``zipf`` 0 draws rows uniformly."""

    tables: int
    rows: int
    dim: int
    batch: int
    pooling: int
    zipf: float

    def held(self, rank: int, num_ranks: int) -> range:
        """Return the tables of a rank."""
        return range(rank * self.tables // num_ranks, (rank + 1) * self.tables // num_ranks)

    def values(self, table: int) -> Floats:
        """Return the elements of a table."""
        rows = (np.arange(self.rows, dtype=np.int32) * 31 + table * 7)[:, None]
        columns = np.arange(self.dim, dtype=np.int32)[None] * 17
        values: Floats = ((rows + columns) % _VALUES).astype(np.float32)
        values -= _VALUES // 2
        values /= _STEP
        return values

    @cached_property
    def _cumulated(self) -> NDArray[np.float64]:
        weights = 1.0 / np.arange(1, self.rows + 1) ** self.zipf
        cumulated: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
        return cumulated

    def indices(self, table: int, turn: int) -> Ints:
        """Draw the rows of a table's bags, sample after sample; popular ones lie anywhere."""
        generator = np.random.default_rng([table, turn])
        count = self.batch * self.pooling
        if not self.zipf:
            return generator.integers(0, self.rows, count)
        popular = np.random.default_rng(table).permutation(self.rows)
        return popular[np.searchsorted(self._cumulated, generator.random(count))].astype(np.int64)

    @property
    def offsets(self) -> Ints:
        """The borders of a table's bags."""
        return np.arange(0, self.batch * self.pooling + 1, self.pooling, dtype=np.int64)


# The cases of the figures: tables, rows, dim, batch, pooling. The last one is weft's own: short
# bags of narrow rows, in which little is pooled for what is sent.
SHAPES = (
    (16, 200_000, 64, 2048, 20),
    (24, 100_000, 128, 1024, 32),
    (8, 1_000_000, 64, 2048, 50),
    (26, 50_000, 32, 4096, 4),
)
SKEWS = (0.0, 1.05)


def cases() -> Iterator[Lookups]:
    """List the cases, with uniform indices and with those of Zipf."""
    for shape in SHAPES:
        for zipf in SKEWS:
            yield Lookups(*shape, zipf)


def lookups_of(case: dict[str, Any]) -> Lookups:
    """Read the lookups that a rank was asked for."""
    return Lookups(**case["lookups"])
