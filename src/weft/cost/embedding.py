"""Seconds of embedding lookups, forward and backward, that know what the batch asks for.

Every lookup brings one row: from the inner cache, the last one or the memory. How many come from
where follows from the Spectrum of the batch (``weft.cost.reuse``) and the room that each cache
has, shared by the ``tables`` that one kernel serves at once. The numbers of a law, for each place
``inner``, ``outer`` and ``memory``: ``.._row`` seconds of a row, ``.._rate`` the share of the
rated memory rate at which its bytes come; ``launch`` seconds whatever the size; ``room`` the
share of a cache that rows can have; ``overlap`` how far the places work at the same time (1: one
after another, as one core does; more: side by side, as many units do).

The backward pass of a batch writes every row that was asked for once, with its optimizer state,
and reads the gradient of a bag for every lookup of it.
"""

import numpy as np

from weft.cost.matmul import Columns, Floats, Law
from weft.cost.recipes import Recipe
from weft.cost.reuse import Spectrum, zipf
from weft.hardware import Device

LINE = 32.0  # bytes that a request to the memory brings at least: a sector of a GPU's cache line


def embedding_seconds(columns: Columns, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Price lookups and sums of a forward pass of ``tables`` equal tables in one kernel."""
    spectrum = spectrum_of(columns)
    row = row_bytes(columns, recipe)
    places = lookups_by_place(spectrum, row, columns["tables"], device, law)
    written = (
        columns["batch"]
        * columns["dim"]
        * recipe.output
        / (device.memory_rated * law["memory_rate"])
    )
    return law["launch"] + columns["tables"] * (_joined(places, row, device, law) + written)


def embedding_backward_seconds(
    columns: Columns, device: Device, recipe: Recipe, law: Law
) -> Floats:
    """Price the backward pass and the update: gradients of bags are read, rows read and written."""
    spectrum = spectrum_of(columns)
    row = row_bytes(columns, recipe)
    bag = columns["batch"] * columns["dim"] * recipe.output
    rate = device.memory_rated * law["memory_rate"]
    rows = spectrum.unique * (2 * law["memory_row"] + 2 * row / rate)
    # Gradients of bags are read once a lookup; bags of a batch follow each other, so they hit.
    read = bag / rate + spectrum.lookups * (
        law["outer_row"] + row / (device.memory_rated * law["outer_rate"])
    )
    sort = spectrum.lookups * _SORT_BYTES / rate
    return law["launch"] + columns["tables"] * (rows + read + sort)


_SORT_BYTES = 2 * 8 * 8.0  # an index and its bag, eight passes of a radix sort


def spectrum_of(columns: Columns) -> Spectrum:
    """Rows by how often a batch asks for them, from the power of a Zipf distribution."""
    return zipf(columns["rows"], columns["batch"] * columns["pooling"], columns["zipf"])


def row_bytes(columns: Columns, recipe: Recipe) -> Floats:
    """Bytes that one row takes on its way, whole sectors."""
    return np.ceil(columns["dim"] * recipe.weight / LINE) * LINE


def lookups_by_place(
    spectrum: Spectrum, row: Floats, tables: Floats, device: Device, law: Law
) -> dict[str, Floats]:
    """How many lookups find their row in the inner cache, in the last one, and in the memory."""
    del tables  # one after another: each has the caches for itself
    inner = spectrum.misses(law["room"] * device.l2_bytes / row)
    last = max(device.last_level_bytes, device.l2_bytes)
    outer = np.minimum(inner, spectrum.misses(law["room"] * last / row))
    return {"inner": spectrum.lookups - inner, "outer": inner - outer, "memory": outer}


def _joined(places: dict[str, Floats], row: Floats, device: Device, law: Law) -> Floats:
    power = law["overlap"]
    seconds = [
        found * (law[f"{place}_row"] + row / (device.memory_rated * law[f"{place}_rate"]))
        for place, found in places.items()
    ]
    joined: Floats = sum(each**power for each in seconds) ** (1 / power)
    return joined
