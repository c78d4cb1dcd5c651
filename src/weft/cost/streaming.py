"""Seconds of kernels that do little but move: elementwise, reductions, softmax, norms, copies.

The numbers of a law: ``launch`` seconds whatever the size, ``memory`` the share of the rated
memory rate, ``cached`` how much faster what fits into the last cache moves, ``wave`` seconds of a
row's work on a unit, which count where rows are few and long.
"""

import numpy as np

from weft.cost.matmul import Columns, Floats, Law
from weft.cost.recipes import Recipe
from weft.hardware import Device


def streaming_seconds(columns: Columns, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Price kernels that move ``nbytes`` and compute ``flops`` on the side."""
    del recipe
    return law["launch"] + moving(columns["nbytes"], device, law)


def row_seconds(columns: Columns, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Price kernels that take each row together: softmax and norms read and write every element."""
    elements = columns["rows"] * columns["width"]
    by_memory = moving(columns["passes"] * elements * recipe.activation, device, law)
    rounds = np.ceil(columns["rows"] / (device.units * _ROWS_A_UNIT))
    by_rows = rounds * law["wave"] * columns["width"] / _ROW_STEP
    return law["launch"] + np.maximum(by_memory, by_rows)


_ROWS_A_UNIT = 8.0  # warps of rows that a unit works on at once: 2048 threads in blocks of 256
_ROW_STEP = 1024.0  # elements of a row that a block of 256 threads takes at once, four each


def moving(nbytes: Floats, device: Device, law: Law) -> Floats:
    """Seconds of bytes through the memory, or through the last cache where they fit into it."""
    rate = device.memory_rated * law["memory"]
    inside = np.clip(2 - 2 * nbytes / device.last_level_bytes, 0.0, 1.0)
    seconds: Floats = nbytes / rate / (1 + inside * (law["cached"] - 1))
    return seconds
