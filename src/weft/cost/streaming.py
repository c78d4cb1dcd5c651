"""Seconds of kernels that do little but move: elementwise, reductions, softmax, norms, copies.

A kernel that takes rows together gives each to one block of threads; a unit holds a few blocks, and
blocks beyond that wait for the next wave. A block goes along its row in steps, each of which waits
for what it loads. What is not in the cache, because the last kernel left it there, comes from the
memory on top. The numbers of a law:

``launch``     seconds whatever the size
``memory``     share of the rated memory rate
``cached``     share of the L2's rate at which bytes come that the last kernel left there;
               ``room`` the share of the L2 that they may have
``start``      seconds of a block before and after its row
``step``       seconds of a block for one step along its row and one pass over the memory
``waves``      share of a last wave's idle units that is not filled by the next blocks
``short``      elements that the shortest row costs
``sharpness``  how suddenly memory takes over from units: one adds both up
"""

import numpy as np

from weft.cost.matmul import Columns, Floats, Law, memory_rate, waves
from weft.hardware import Device
from weft.hardware.dtypes import Recipe


def streaming_seconds(columns: Columns, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Price kernels that move ``nbytes`` and compute ``flops`` on the side."""
    del recipe
    nbytes = columns["nbytes"]
    return law["launch"] + nbytes / memory_rate(nbytes, device, law)


def row_seconds(columns: Columns, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Price kernels that take each row together: softmax, norms, gated activations."""
    wide = np.maximum(columns["width"], law["short"])
    nbytes = columns["passes"] * columns["rows"] * wide * recipe.activation
    by_memory = nbytes / memory_rate(nbytes, device, law)
    threads = np.clip(columns["width"], _WARP, _BLOCK)
    at_once = device.units * np.minimum(device.kernels.unit_threads / threads, _MOST_BLOCKS)
    steps = columns["passes"] * np.ceil(columns["width"] / _BLOCK)
    block = law["start"] + law["step"] * steps
    by_units = waves(columns["rows"] / np.maximum(at_once, 1.0), law["waves"]) * block
    power = law["sharpness"]
    seconds: Floats = law["launch"] + (by_memory**power + by_units**power) ** (1 / power)
    return seconds


_BLOCK, _WARP = 1024.0, 32.0  # threads of the largest block and of the smallest, one element each
_MOST_BLOCKS = 16.0  # that a unit holds
