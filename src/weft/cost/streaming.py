"""Seconds of kernels that do little but move: elementwise, reductions, softmax, norms, copies.

A kernel that takes rows together gives each to one block of threads; a unit holds a few blocks, and
blocks beyond that wait for the next wave. A block goes along its row in steps, each of which waits
for what it loads: for the memory, unless the last kernel left it in the cache. All blocks together
are no faster than the memory. The coefficients:

``launch``     seconds whatever the size
``memory``     share of the rated memory rate
``cached``     share of the L2's rate at which bytes come that the last kernel left there;
               ``room`` the share of the L2 that they may have
``start``      cycles of a block before and after its row
``step``       cycles of a block for one step along its row and one pass over the memory
``sharing``    share of a step by which another block on the same unit makes it longer
``miss``       share of a step by which it is longer when it waits for the memory, not the L2
``waves``      share of a last wave's idle units that is not filled by the next blocks
``short``      elements that the shortest row costs
``sharpness``  how suddenly memory takes over from units: one adds both up
"""

import numpy as np

from weft.cost.matmul import Coefficients, Columns, Floats, memory_rate, resident, waves
from weft.hardware import Device
from weft.hardware.dtypes import QuantizationScheme


def streaming_seconds(
    columns: Columns, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Price kernels that move ``nbytes`` and compute ``flops`` on the side."""
    del scheme
    nbytes = columns["nbytes"]
    return coefficients["launch"] + nbytes / memory_rate(nbytes, device, coefficients)


def strided_seconds(
    columns: Columns, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Price kernels that compute where each of their ``elements`` lies: permuted or broadcast.

    They load one element at a time and divide by every dimension to find it, on the lanes of the
    units; rows of 128 bytes or more move no more bytes than in a plain copy.
    """
    plain = streaming_seconds(columns, device, scheme, coefficients)
    cycles = columns["elements"] * _ELEMENT_INSTRUCTIONS / (device.units * device.kernels.lanes)
    located: Floats = coefficients["launch"] + cycles / (device.kernels.clock * 1e9)
    return np.maximum(plain, located)


# Instructions for an element in torch's kernels that compute offsets, fitted to five kernels of a
# recorded step of Qwen1.5-0.5B on H100 and on MI300X (TraceLens' traces): 16 and 14 % off.
_ELEMENT_INSTRUCTIONS = 85.0


def row_seconds(
    columns: Columns, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Price kernels that take each row together: softmax, norms, gated activations."""
    wide = np.maximum(columns["width"], coefficients["short"])
    nbytes = columns["passes"] * columns["rows"] * wide * scheme.activation
    by_memory = nbytes / memory_rate(nbytes, device, coefficients)
    threads = np.clip(columns["width"], _WARP, _BLOCK)
    held = np.clip(np.floor(device.kernels.unit_threads / threads), 1.0, _MOST_BLOCKS)
    sharing = np.clip(np.ceil(columns["rows"] / device.units), 1.0, held) - 1
    steps = columns["passes"] * np.ceil(columns["width"] / _BLOCK)
    waiting = (1 + coefficients["sharing"] * sharing) * (
        1 + coefficients["miss"] * (1 - resident(nbytes, device, coefficients))
    )
    cycles = coefficients["start"] + coefficients["step"] * steps * waiting
    rounds = waves(columns["rows"] / (device.units * held), coefficients["waves"])
    by_units = rounds * cycles / (device.kernels.clock * 1e9)
    power = coefficients["sharpness"]
    seconds: Floats = coefficients["launch"] + (by_memory**power + by_units**power) ** (1 / power)
    return seconds


_BLOCK, _WARP = 1024.0, 32.0  # threads of the largest block and of the smallest, one element each
_MOST_BLOCKS = 16.0  # that a unit holds
