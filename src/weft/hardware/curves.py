"""A library's collectives on a device: curves that were measured or fitted, and how far off."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Curve = tuple[tuple[float, float], ...]
"""Places (bytes, seconds), straight lines between them, the last line continued."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Geometric means of the relative error against so many cells of the tables.

    ``fit`` is of the cells that were fitted to; the others are of cells that were not: every
    second size (``within_20`` is the share of these that is within 20 %), one number of ranks, or
    one version left out. None: nothing could be left out.
    """

    cells: int
    fit: float
    held_back: float
    within_20: float
    count_left_out: float | None = None
    version_left_out: float | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """One collective of one version: its curves and how far they are from what was measured.

    ``dtypes`` is ``float``, ``int8`` or, where nothing is reduced, ``any``. ``first`` and ``step``
    are curves over the bytes of a chunk. ``in_switch`` is a curve over the whole size, for
    reductions inside the switch from ``in_switch_from`` bytes on when all of ``ranks`` take part.
    """

    version: str
    collective: str
    dtypes: Literal["float", "int8", "any"]
    ranks: tuple[int, ...]
    first: Curve
    step: Curve
    in_switch: Curve
    in_switch_from: int
    errors: Errors

    def covers(self, num_ranks: int) -> bool:
        """Return whether the curves cover a number of ranks: without steps, only measured ones."""
        return num_ranks >= min(self.ranks) if self.step else num_ranks in self.ranks


@dataclass(frozen=True, slots=True)
class Library:
    """A library on a device; ``node`` is the machine of the catalogue that it was measured on.

    Collectives, numbers of ranks and nodes that it has no kernel for it leaves to ``fallback``.
    """

    name: str
    device: str
    basis: str
    source: str
    node: str
    smallest: int
    largest: int
    fits: tuple[Fit, ...]
    fallback: str = ""

    def serves(self, collective: str, num_ranks: int) -> bool:
        """Return whether it has a measured kernel for a number of ranks."""
        return any(f.collective == collective and f.covers(num_ranks) for f in self.fits)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions that were measured, the oldest first."""
        return tuple(sorted({fit.version for fit in self.fits}, key=version_key))


@dataclass(frozen=True, slots=True)
class AlgorithmFit:
    """The numbers of ``weft.cost.nccl_algorithms`` for a library, whatever the device.

    ``fitted`` and ``held_out`` are geometric means of the relative error by collective, of logs
    that were fitted to and of logs that were not.
    """

    name: str
    version: str
    source: str
    coefficients: Mapping[str, float] = field(hash=False)
    fitted: Mapping[str, float] = field(hash=False)
    held_out: Mapping[str, float] = field(hash=False)


def version_key(version: str) -> tuple[int, ...]:
    """Order versions as numbers: 2.9 comes before 2.10.

    A release comes after its candidates and before its patches.

    >>> sorted(["2.10", "2.9.1", "2.9"], key=version_key)
    ['2.9', '2.9.1', '2.10']
    >>> sorted(["1.3.0", "1.3.0rc20", "1.3.0rc9", "1.3.0.post2"], key=version_key)
    ['1.3.0rc9', '1.3.0rc20', '1.3.0', '1.3.0.post2']
    """
    release, kind, number = _VERSION.fullmatch(version).groups()  # type: ignore[union-attr]
    rank = {None: 0, "rc": -1, ".post": 1}[kind]
    return *map(int, release.split(".")), rank, int(number or 0)


_VERSION = re.compile(r"(\d+(?:\.\d+)*)(?:(rc|\.post)(\d+))?")
