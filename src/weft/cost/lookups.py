"""Seconds of embedding lookups on a core, from what was measured there.

A core does one thing after another, so what rows, bytes and pages take adds up. Which rows come
from the last cache and which from memory follows from the Spectrum of the batch: caches hold none
of a table's rows at first, as inside a step, where other work has passed through them. Tables lie
in small pages: a row in a page that was not visited for long needs the page tables, whose leaves
(eight pages in a line of 64 bytes) are not in a cache either.
"""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from weft.cost.fit_errors import geomean_error
from weft.cost.least_squares import smallest_errors
from weft.cost.matmul import Columns, Floats
from weft.cost.reuse import BINS, Spectrum, from_bins, zipf
from weft.hardware import Lookups

BIN_NAMES = tuple(f"bin{each}" for each in range(BINS))
LINE = 64.0  # bytes that a core brings at once
_PAGE = 4096.0
_LEAF = 8 * _PAGE  # what one line of a page table covers
ROOM = 0.9  # of a cache that rows can have, arXiv 2404.12674
_NONE = 1e-300  # lookups of empty bags: there is nothing to divide
# Keys of ``Device.lookups`` for the backward pass with its change of the rows.
BACKWARD_LOOKUPS = frozenset(("torch_backward", "weft_backward"))
TERMS = tuple(each.name for each in fields(Lookups)[:12])  # those that are seconds


def spectrum_of(columns: Columns) -> Spectrum:
    """Return rows by how often a batch looks them up: by bins where given, else by Zipf."""
    lookups = columns["batch"] * columns["pooling"]
    bins = np.stack([columns[name] for name in BIN_NAMES], axis=1)
    given = bins.sum(axis=1) > 0
    by_rank = zipf(columns["rows"], np.where(given, 0.0, lookups), columns["zipf"])
    return by_rank.joined_with(from_bins(bins, lookups)) if given.any() else by_rank


def core_seconds(columns: Columns, item: float, takes: Lookups, *, backward: bool) -> Floats:
    """Add up what every bag, row, byte and page takes; tables are looked up one by one."""
    values = np.array([getattr(takes, name) for name in TERMS])
    terms = lookup_terms(columns, item, takes, backward=backward)
    seconds: Floats = columns["tables"] * (terms @ values)
    return seconds


def fitted_lookups(
    columns: Columns, item: float, seconds: Floats, caches: Lookups, *, backward: bool
) -> Lookups:
    """Find what rows and bytes take, from times of single tables; ``caches`` has their sizes."""
    terms = lookup_terms(columns, item, caches, backward=backward)
    found = smallest_errors(terms, seconds)
    error = geomean_error(terms @ found / seconds - 1)
    values: dict[str, Any] = dict(zip(TERMS, (float(f"{v:.4g}") for v in found), strict=True))
    return replace(caches, **values, error=float(f"{error:.3g}"))


def lookup_terms(columns: Columns, item: float, takes: Lookups, *, backward: bool) -> Floats:
    """Count what is paid for in one table, in the order of the fields of ``Lookups``.

    The forward pass sums a row for every lookup, from wherever it is found. The backward pass
    writes the gradient of its bag for every lookup, sorts them, adds up those of one row, and
    changes every row that was asked for once, in the order in which rows lie.
    """
    spectrum, row = spectrum_of(columns), columns["dim"] * item
    lines = np.ceil(row / LINE) * LINE
    outer, memory = _places(spectrum, lines, takes)
    if backward:  # rows are changed in order, so the gradients of bags are read in any order
        beyond = np.maximum(0.0, 1 - takes.inner_bytes / (columns["batch"] * row))
        outer, memory = spectrum.lookups * beyond, spectrum.unique
    counted = (
        *(np.ones_like(row), columns["batch"], columns["batch"] * row),
        *(spectrum.lookups, spectrum.lookups * row, outer, outer * lines),
        *(memory, memory * lines, memory * (1 - memory / np.maximum(spectrum.lookups, _NONE))),
        *(_visited(spectrum, columns, row, size) for size in (_PAGE, _LEAF)),
    )
    return np.stack(counted, axis=1)


def _places(spectrum: Spectrum, lines: Floats, takes: Lookups) -> tuple[Floats, Floats]:
    """Count the lookups that find their row in the last cache, and in memory."""
    inner = spectrum.misses(ROOM * takes.inner_bytes / lines)
    memory = np.minimum(inner, spectrum.misses(ROOM * takes.outer_bytes / lines))
    return inner - memory, memory


def _visited(spectrum: Spectrum, columns: Columns, row: Floats, size: float) -> Floats:
    """Count the pages, or leaves of page tables, in which rows lie that are asked for."""
    blocks: Floats = spectrum.visited(columns["rows"], size / row) * np.maximum(1.0, row / size)
    return blocks
