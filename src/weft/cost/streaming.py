"""Seconds of kernels that do little but move: elementwise, reductions, softmax, norms, copies.

The numbers of a law: ``launch`` seconds whatever the size, ``memory``, ``cached`` and ``room`` as
of matrix products, ``wave`` seconds of a block of a row on a unit, which count where rows are few
and long, ``short`` elements that the shortest row costs.
"""

import numpy as np

from weft.cost.matmul import Columns, Floats, Law, memory_rate
from weft.hardware import Device
from weft.hardware.dtypes import Recipe


def streaming_seconds(columns: Columns, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Price kernels that move ``nbytes`` and compute ``flops`` on the side."""
    del recipe
    nbytes = columns["nbytes"]
    return law["launch"] + nbytes / memory_rate(nbytes, device, law)


def row_seconds(columns: Columns, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Price kernels that take each row together: softmax and norms read and write every element."""
    wide = np.maximum(columns["width"], law["short"])
    nbytes = columns["passes"] * columns["rows"] * wide * recipe.activation
    by_memory = nbytes / memory_rate(nbytes, device, law)
    rounds = np.maximum(columns["rows"] / (device.units * _ROWS_A_UNIT), 1.0)
    by_rows = rounds * law["wave"] * np.ceil(columns["width"] / _ROW_STEP)
    seconds: Floats = law["launch"] + (by_memory**3 + by_rows**3) ** (1 / 3)
    return seconds


_ROWS_A_UNIT = 8.0  # blocks of rows that a unit works on at once: 2048 threads in blocks of 256
_ROW_STEP = 1024.0  # elements of a row that a block of 256 threads takes at once, four each
