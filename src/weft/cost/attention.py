"""Seconds of attention that never writes its scores: prefill, decoding and the backward pass.

In prefill a workgroup takes ``block`` queries of one head along the keys that they may see; the
kernel ends no sooner than the workgroup that sees most. Its coefficients: ``launch``,
``flops``, ``memory``, ``sharpness`` and ``start`` as of matrix products; ``block`` queries of a
workgroup; ``exponent`` what a score costs in addition to its products, in dimensions of a head;
``prepare`` passes of queries, keys and values through the memory before, which turn and store
them; ``masked`` the share by which a causal mask makes all steps along the keys longer, none if
absent.

In decoding there is one query a sequence: a workgroup brings the keys and values of a head once
for all queries that share them. The keys of one head are split among several workgroups while
units are idle, in parts of 128 or more. Its coefficients:

``launch``     seconds whatever the size; ``floor`` cycles of the same
``memory``     share of the rated memory rate; ``pull`` what the workgroups of one unit reach,
               as a multiple of the unit's fair share of the memory
``start``      cycles of a workgroup apart from what it reads; ``head`` cycles that every query
               that shares its keys adds
``parts``      workgroups for each unit up to which keys are split; ``alone`` the most parts where
               no two queries share keys, which is another kernel in libraries
``slots``      workgroups that a unit runs at once; ``waves`` as of matrix products
``join``       cycles to join the parts
``narrow``     power of the bytes of an element, over two, by which cycles shrink: smaller caches
               of keys have kernels of their own
``sharpness``  how suddenly the memory takes over from workgroups: one adds both up

In training there are several libraries (``Cost.implementation``), each with coefficients of its own
for both passes: the backward pass has the same form with five products where the forward has two.
"""

from collections.abc import Mapping

import numpy as np

from weft.cost.matmul import Coefficients, Columns, Floats, waves
from weft.cost.peak_rates import rated_flops
from weft.hardware import Device
from weft.hardware.dtypes import QuantizationScheme


def attention_seconds(
    columns: Columns, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Price forward passes; without ``causal`` every query sees every key."""
    rate = device.memory_rated * coefficients["memory"]
    seen, most = visible_keys(columns)
    units = _by_units(columns, seen, most, device, scheme, coefficients)
    own, shared = _elements(columns)
    moved = (own * (scheme.activation + scheme.output) + shared * columns["kv_bytes"]) / rate
    before = coefficients["prepare"] * (own + shared) * scheme.output / rate
    power = coefficients["sharpness"]
    seconds: Floats = coefficients["launch"] + before + (units**power + moved**power) ** (1 / power)
    return seconds


def backward_seconds(
    columns: Columns, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Price backward passes: five products where the forward pass has two."""
    forward = attention_seconds(columns, device, scheme, coefficients) - coefficients["launch"]
    return coefficients["launch"] + _BACKWARD * forward


_BACKWARD = 2.5  # products of the backward pass for each of the forward: arXiv 2205.14135


def decode_seconds(
    columns: Columns, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Price one new query for every sequence, over ``keys`` that are stored already.

    Keys and values are read once each, or ``reads`` times together if given. ``latent`` keys are
    read once, as values are a part of them; all heads share them, so that they are rows of one
    product, which may take longer than reading.
    """
    window, latent = columns["window"], columns["latent"] > 0
    keys = np.where(window > 0, np.minimum(columns["keys"], window), columns["keys"])
    groups = columns["batch"] * columns["kv_heads"]
    sharing = columns["heads"] / columns["kv_heads"]
    cycle = 1 / (device.kernels.clock * 1e9)
    narrow = (columns["kv_bytes"] / 2) ** coefficients["narrow"]

    most = np.where(sharing > 1, np.inf, coefficients["alone"])
    idle = np.maximum(coefficients["parts"] * device.units / groups, 1.0)
    parts = np.minimum(np.clip(keys / _PART, 1.0, idle), most)
    filled = groups * parts / device.units

    reads = columns.get("reads", np.where(latent, 1.0, 2.0))
    moved = reads * groups * keys * columns["head_dim"] * columns["kv_bytes"]
    slower = np.maximum(1 / (coefficients["pull"] * np.minimum(filled, 1.0)), 1.0)
    by_memory = slower * moved / (device.memory_rated * coefficients["memory"])
    flops = 4 * columns["batch"] * columns["heads"] * keys * columns["head_dim"]
    by_math = flops / (_LATENT_FLOPS * rated_flops(device, scheme.math))
    by_memory = np.where(latent, np.maximum(by_memory, by_math), by_memory)

    each = coefficients["start"] + coefficients["head"] * np.where(latent, 1.0, sharing)
    by_units = waves(filled / coefficients["slots"], coefficients["waves"]) * each * narrow * cycle
    joined = coefficients["join"] * np.clip(parts - 1, 0.0, 1.0)
    before = coefficients["launch"] + (coefficients["floor"] + joined) * np.sqrt(narrow) * cycle
    power = coefficients["sharpness"]
    seconds: Floats = before + (by_units**power + by_memory**power) ** (1 / power)
    return seconds


_LATENT_FLOPS = 0.66  # of the rated flops: FlashMLA, 660 TFLOP/s on H800 where products bound it
_ONE_TILE = 16.0  # queries that share keys in the smallest tile of a product
_PART = 128.0  # keys of the smallest part: XQA's and FlashAttention's tiles


def visible_keys(columns: Columns) -> tuple[Floats, Floats]:
    """Return how many keys a query sees in the mean and at most: those before it, in its window."""
    queries, keys = columns["queries"], columns["keys"]
    causal = columns["causal"] > 0
    window = np.where(columns["window"] > 0, np.minimum(columns["window"], keys), keys)
    some = np.minimum(queries, keys)  # the last queries see all keys, the first of more see none
    seen = some * (keys - (some - 1) / 2)
    # The last ones of them see no more than the window: the sum of what lies before it.
    cut = np.minimum(keys - window, some)
    seen = seen - cut * (keys - window - (cut - 1) / 2)
    return np.where(causal, seen / queries, window), window


def _by_units(
    columns: Columns,
    seen: Floats,
    most: Floats,
    device: Device,
    scheme: QuantizationScheme,
    coefficients: Coefficients,
) -> Floats:
    """Return the seconds of the units: an equal share of all work, or the longest workgroup."""
    rate = rated_flops(device, scheme.math) * coefficients["flops"] / device.units
    heads = columns["batch"] * columns["heads"]
    blocks = heads * np.ceil(columns["queries"] / coefficients["block"])
    key = 2 * coefficients["block"] * (2 * columns["head_dim"] + coefficients["exponent"]) / rate
    key = key * np.where(columns["causal"] > 0, 1 + coefficients.get("masked", 0.0), 1.0)
    rounds = np.maximum(blocks / device.units, 1.0)
    shared = (
        rounds * coefficients["start"] + np.where(blocks < device.units, 0.0, rounds) * key * seen
    )
    return np.maximum(shared, coefficients["start"] + key * (most + coefficients["block"]))


def _elements(columns: Columns) -> tuple[Floats, Floats]:
    """Return the elements of queries, and of keys and values of the heads that have some."""
    each = columns["batch"] * columns["head_dim"]
    return (
        each * columns["queries"] * columns["heads"],
        2 * each * columns["keys"] * columns["kv_heads"],
    )


def attention_places(columns: Columns) -> Mapping[str, Floats]:
    """Return what corrections of attention look at, in addition to its columns.

    All heads share latent keys and are rows of one product. Tables have no such kernel: theirs of
    large groups take more than 32 queries one by one.
    """
    group = columns["heads"] / columns["kv_heads"]
    return {
        "sequences": columns["batch"],
        "group": np.where(columns["latent"] > 0, np.minimum(group, _ONE_TILE), group),
        "windowed": np.where(columns["window"] > 0, 2.0, 1.0),
    }
