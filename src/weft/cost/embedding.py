"""Seconds of embedding lookups, forward and backward, that know what the batch asks for.

Every lookup brings one row: from the inner cache, the last one or the memory. How many come from
where follows from the Spectrum of the batch (``weft.cost.reuse``) and the room that each cache
has, shared by the tables that one kernel serves at once. The backward pass reads the gradient of
a bag for every lookup of it, and reads and writes every row that was asked for once, with ``state``
more rows of its gradient and of the optimizer's state.

A core whose lookups were measured is priced by that (``weft.cost.lookups``). For others there are a
few coefficients: the shares of the rated memory rate at which rows come from each place
(``.._rate``), and ``.._row`` seconds of a row; ``launch`` seconds whatever the size; ``overlap``
how far the places work at the same time (1: one after another; more: side by side, as units do).
"""

from functools import partial

import numpy as np

from weft.cost.lookups import LINE, ROOM, core_seconds, spectrum_of
from weft.cost.matmul import Coefficients, Columns, Floats
from weft.cost.reuse import Spectrum
from weft.hardware import Device
from weft.hardware.dtypes import QuantizationScheme

_WARPS = 64  # of a unit, each summing one bag: what a GPU has in flight
_SORT_BYTES = 2 * 8 * 8.0  # an index and its bag, eight passes of a radix sort


def embedding_seconds(
    columns: Columns,
    device: Device,
    scheme: QuantizationScheme,
    coefficients: Coefficients,
    *,
    by: str = "torch",
) -> Floats:
    """Price lookups and sums of a forward pass of ``tables`` equal tables."""
    if by in device.lookups:
        return core_seconds(columns, scheme.weight, device.lookups[by], backward=False)
    row = row_bytes(columns, device, scheme)
    places = lookups_by_place(spectrum_of(columns), columns, row, device)
    written = _bags(columns, scheme) / (device.memory_rated * coefficients["memory_rate"])
    return coefficients["launch"] + columns["tables"] * (
        _side_by_side(places, row, device, coefficients) + written
    )


def embedding_backward_seconds(
    columns: Columns,
    device: Device,
    scheme: QuantizationScheme,
    coefficients: Coefficients,
    *,
    by: str = "torch",
) -> Floats:
    """Price the backward pass with its update of the rows."""
    if (takes := device.lookups.get(f"{by}_backward")) is not None:
        return core_seconds(columns, scheme.weight, takes, backward=True)
    spectrum, row = spectrum_of(columns), row_bytes(columns, device, scheme)
    rate = device.memory_rated * coefficients["memory_rate"]
    rows = (2 + columns["state"]) * spectrum.unique * (coefficients["memory_row"] + row / rate)
    # Gradients of bags are read once a lookup; those of one bag follow each other, so they hit.
    again = spectrum.lookups * (
        coefficients["outer_row"] + row / (device.memory_rated * coefficients["outer_rate"])
    )
    moved = (_bags(columns, scheme) + _SORT_BYTES * spectrum.lookups) / rate
    return coefficients["launch"] + columns["tables"] * (rows + again + moved)


fused_embedding_seconds = partial(embedding_seconds, by="weft")
fused_embedding_backward_seconds = partial(embedding_backward_seconds, by="weft")


def row_bytes(columns: Columns, device: Device, scheme: QuantizationScheme) -> Floats:
    """Return the bytes that a row moves: whole lines of a CPU, whole sectors of a GPU."""
    line = LINE if device.shared is not None else 32.0
    return np.ceil(columns["dim"] * scheme.weight / line) * line


def _bags(columns: Columns, scheme: QuantizationScheme) -> Floats:
    return columns["batch"] * columns["dim"] * scheme.output


def lookups_by_place(
    spectrum: Spectrum, columns: Columns, row: Floats, device: Device
) -> dict[str, Floats]:
    """Count lookups that find their row in the inner cache, in the last one, or in memory."""
    at_once = np.ones_like(row)
    if device.shared is None:  # a core serves one table after another
        bags = np.maximum(columns["batch"], 1.0)
        at_once = np.clip(device.units * _WARPS / bags, 1.0, np.maximum(columns["tables"], 1.0))
    inner = spectrum.misses(ROOM * device.l2_bytes / row / at_once)
    last = max(device.last_level_bytes, device.l2_bytes)
    outer = inner
    if last > device.l2_bytes:
        outer = np.minimum(inner, spectrum.misses(ROOM * last / row / at_once))
    return {"inner": spectrum.lookups - inner, "outer": inner - outer, "memory": outer}


def _side_by_side(
    places: dict[str, Floats], row: Floats, device: Device, coefficients: Coefficients
) -> Floats:
    power = coefficients["overlap"]
    total = np.zeros_like(row)
    for place, found in places.items():
        rate = device.memory_rated * coefficients[f"{place}_rate"]
        total += (found * (coefficients[f"{place}_row"] + row / rate)) ** power
    joined: Floats = total ** (1 / power)
    return joined
