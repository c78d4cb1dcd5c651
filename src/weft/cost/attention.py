"""Seconds of attention that never writes its scores: prefill, decoding and the backward pass.

A workgroup takes ``block`` queries of one head along the keys they may see. Where there are few
queries (decoding) the keys are split among workgroups, and heads that share keys read them once.
The numbers of a law: ``launch``, ``flops``, ``memory`` and ``sharpness`` as of matrix products;
``block`` queries of a workgroup; ``start`` seconds of a workgroup beside its loop; ``exponent``
what a score costs beside its products, in dimensions of a head; ``pull`` as of matrix products.
"""

import numpy as np

from weft.cost.matmul import Columns, Floats, Law
from weft.cost.recipes import Recipe, rated_flops
from weft.hardware import Device


def attention_seconds(columns: Columns, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Price forward passes; without ``causal`` every query sees every key."""
    seen = visible_keys(columns)
    units = _by_units(columns, seen, device, recipe, law)
    moved = _bytes(columns, seen, recipe) / (device.memory_rated * law["memory"])
    power = law["sharpness"]
    seconds: Floats = law["launch"] + (units**power + moved**power) ** (1 / power)
    return seconds


def backward_seconds(columns: Columns, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Price backward passes: five products where the forward pass has two, five tensors more."""
    forward = attention_seconds(columns, device, recipe, law) - law["launch"]
    return law["launch"] + _BACKWARD * forward


_BACKWARD = 2.5  # products of the backward pass for each of the forward: arXiv 2205.14135


def visible_keys(columns: Columns) -> Floats:
    """Keys that a query sees in the mean: those before it, in a window if there is one."""
    queries, keys = columns["queries"], columns["keys"]
    causal = keys - (queries - 1) / 2
    seen = np.where(columns["causal"] > 0, causal, keys)
    window = columns["window"]
    return np.where(window > 0, np.minimum(seen, window), seen)


def _by_units(columns: Columns, seen: Floats, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Workgroups in rounds on the units, each along the keys of its queries."""
    rate = rated_flops(device, recipe.math) * law["flops"] / device.units
    heads = columns["batch"] * columns["heads"]
    blocks = heads * np.ceil(columns["queries"] / law["block"])
    depth = 2 * columns["head_dim"] + law["exponent"]
    loop = 2 * law["block"] * depth * seen / rate
    rounds = np.maximum(blocks / device.units, 1.0)
    split = np.where(columns["queries"] < law["block"], np.minimum(rounds, 1.0), 1.0)
    return rounds * law["start"] + rounds * loop * split


def _bytes(columns: Columns, seen: Floats, recipe: Recipe) -> Floats:
    """Queries and results of every head, keys and values of every head that has its own."""
    own = columns["queries"] * columns["heads"] * (recipe.activation + recipe.output)
    shared = 2 * np.maximum(seen, columns["queries"]) * columns["kv_heads"] * columns["kv_bytes"]
    both: Floats = columns["batch"] * columns["head_dim"] * (own + shared)
    return both
