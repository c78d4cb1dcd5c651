"""Seconds of matrix products from tiles and waves, in columns: one row a product.

A library cuts the result into tiles, one a workgroup, and k into splits where there are too few
tiles for the units. A unit multiplies a tile at its share of the device's rate, or pulls the
panels of the tile from memory, whichever is slower; all together are no faster than the memory.
The library takes the tile and split that are fastest. The coefficients:

``launch``      seconds before and after, whatever the size
``flops``       share of the rated flop rate that the loop of a tile reaches
``memory``      share of the rated memory rate
``pull``        what one unit can pull, as a multiple of its fair share of the memory
``start``       seconds until a tile's loop runs, and to store its result
``loading``     what a step of the loop costs in addition to its products, in rows of a tile
``narrow``      the fewest rows that a step multiplies, wanted or not
``split``       seconds to join splits of k; ``split_bytes`` passes of their sums over the memory
``sharpness``   how suddenly memory takes over from units: the power of the mean of both
``waves``       share of a last wave's idle units that is not filled by the next tiles
``step``        seconds of a step along k when nothing else holds it up: loads, multiply, wait
``cached``      share of the L2's rate at which operands come that stay there from
                one product to the next; ``room`` the share of it that they may have
``quantise``    bytes that pass the memory for every activation before it is multiplied
``row``         seconds of every row of activations before that: scales and their rounding
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from weft.cost.peak_rates import rated_flops
from weft.hardware import Device
from weft.hardware.dtypes import QuantizationScheme

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]
Coefficients = Mapping[str, float]

_TILES = [(m, n) for m in (16, 32, 64, 128, 256) for n in (32, 64, 128, 256) if m > 16 or n < 256]
_SPLITS = (1.0, 2.0, 4.0, 8.0, 16.0)
_CHOICES = np.array([(*tile, split) for tile in _TILES for split in _SPLITS])
_STEP = 64.0  # elements of k that a loop takes at once
_ROWS = 4096  # of a table priced at once, so that what is computed stays in the caches


def matmul_seconds(
    columns: Columns, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Price products of (m, k) and (k, n) matrices, ``batch`` of them in one kernel.

    Of the first, the share ``fresh`` is read from the memory: all of it, if not given.
    """
    fresh = columns.get("fresh", np.ones_like(columns["m"]))
    sides = np.stack([*(columns[key] for key in ("batch", "m", "n", "k")), fresh])
    parts = [
        _fastest(sides[:, at : at + _ROWS, None], device, scheme, coefficients)
        for at in range(0, sides.shape[1], _ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def convolution_seconds(
    columns: Columns, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Price convolutions as the products they are."""
    return matmul_seconds(convolution_sides(columns), device, scheme, coefficients)


def convolution_sides(columns: Columns) -> dict[str, Floats]:
    """Return the product of a convolution: a row an output pixel, a column a filter.

    Patches overlap and are gathered on the way to a tile, so memory gives the image once.
    """
    stride = columns["stride"]
    high, wide = (np.maximum(columns[key] // stride, 1.0) for key in ("height", "width"))
    return {
        "batch": columns["groups"],
        "m": columns["batch"] * high * wide,
        "n": columns["filters"] / columns["groups"],
        "k": columns["channels"] / columns["groups"] * columns["kernel"] ** 2,
        "fresh": np.minimum((stride / columns["kernel"]) ** 2, 1.0),
    }


GRID_PLACES = ("tokens",)  # mean something on a grid alone
RAGGED = 2.0**20  # moves rows that fill no whole eighths to knots of their own
_MOST_TOKENS = 2.0**15


def matmul_places(columns: Columns) -> Mapping[str, Floats]:
    """Return what corrections of products look at: whether rows fill tiles, and their number.

    ``padded`` rows are brought to a multiple of four before: kernels with block scales load those
    of four rows at once, as TMA takes no less than 16 bytes.
    """
    tokens = np.minimum(columns["m"], _MOST_TOKENS)
    ragged = (columns["m"] > 16) & (columns["m"] % 8 != 0)
    return {
        "tokens": np.where(ragged, RAGGED * tokens, tokens),
        "padded": np.where(columns["m"] % _ALIGNED != 0, 2.0, 1.0),
    }


_ALIGNED = 4.0


def convolution_places(columns: Columns) -> Mapping[str, Floats]:
    """Return ``matmul_places`` of the product that a convolution is."""
    sides = convolution_sides(columns)
    return {**sides, **matmul_places(sides)}


def _fastest(
    sides: Floats, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Take the fastest tile and split of every row."""
    batch, m, n, k, fresh = sides
    high, wide, split = _CHOICES.T
    tiles = batch * np.ceil(m / high) * np.ceil(n / wide) * split
    loop = np.maximum(
        _multiplying(high, wide, device, scheme, coefficients),
        _pulling(m, n, device, scheme, coefficients),
    )
    depth = np.maximum(np.ceil(k / split / _STEP), 1.0)
    tile = coefficients["start"] + depth * np.maximum(_STEP * loop, coefficients["step"])
    units = waves(tiles / device.units, coefficients["waves"]) * tile
    sums = np.where(split > 1, 8.0 * coefficients["split_bytes"] * batch * m * n * split, 0.0)
    moved = batch * (
        fresh * m * k * scheme.activation + n * k * scheme.weight + m * n * scheme.output
    )
    memory = (moved + sums) / memory_rate(moved, device, coefficients)
    power = coefficients["sharpness"]
    both: Floats = (units**power + memory**power) ** (1 / power)
    both += np.where(split > 1, coefficients["split"], 0.0)
    fastest: Floats = both.min(axis=1) + _before((batch * m)[:, 0], k[:, 0], device, coefficients)
    return fastest


def _before(rows: Floats, k: Floats, device: Device, coefficients: Coefficients) -> Floats:
    """Return the seconds before the first tile: the launch, and conversion of activations."""
    if coefficients["quantise"] + coefficients["row"] == 0:
        return np.full_like(rows, coefficients["launch"])
    elements = rows * k
    rate = memory_rate(_QUANTISED * elements, device, coefficients)
    return (
        coefficients["launch"]
        + coefficients["quantise"] * elements / rate
        + coefficients["row"] * rows
    )


_QUANTISED = 3.0  # bytes of an activation as it comes, bf16, and as it goes, fp8


def memory_rate(footprint: Floats, device: Device, coefficients: Coefficients) -> Floats:
    """Return the rate of bytes that are used repeatedly: faster where they stay in the cache."""
    memory = device.memory_rated * coefficients["memory"]
    cache = max(memory, device.kernels.l2_rate * coefficients["cached"])
    rate: Floats = memory + resident(footprint, device, coefficients) * (cache - memory)
    return rate


def resident(footprint: Floats, device: Device, coefficients: Coefficients) -> Floats:
    """Return the share of a footprint that is still in the cache when it is used again."""
    inside: Floats = np.clip(2 - footprint / (coefficients["room"] * device.l2_bytes), 0.0, 1.0)
    return inside


def _multiplying(
    high: Floats,
    wide: Floats,
    device: Device,
    scheme: QuantizationScheme,
    coefficients: Coefficients,
) -> Floats:
    """Return the seconds of a unit for one element of k of a tile, bound by multiplications."""
    rate = rated_flops(device, scheme.math) * coefficients["flops"] / device.units
    loading = 1 + coefficients["loading"] * (1 / np.maximum(high, 64) + 1 / np.maximum(wide, 64))
    seconds: Floats = 2 * np.maximum(high, coefficients["narrow"]) * wide / rate * loading
    return seconds


def _pulling(
    m: Floats, n: Floats, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Return the seconds of a unit for one element of k of a tile, bound by loading its rows."""
    high, wide, _ = _CHOICES.T
    panel = np.minimum(high, m) * scheme.activation + np.minimum(wide, n) * scheme.weight
    seconds: Floats = (
        panel * device.units / (coefficients["pull"] * device.memory_rated * coefficients["memory"])
    )
    return seconds


def waves(each: Floats, idle: float) -> Floats:
    """Return the rounds of tiles on every unit; idle units of the last one are lost in part."""
    return np.where(each <= 1, 1.0, idle * np.ceil(each) + (1 - idle) * each)
