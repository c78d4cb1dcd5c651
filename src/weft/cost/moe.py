"""Seconds of a layer of experts: two grouped matrix products and what lies between them.

Of ``experts`` the rank holds its share ``1 / ep``, each cut ``tp`` times along its inner side.
A token goes to ``topk`` of them; those that get none are not read. Rows of each expert are
padded to whole tiles. The numbers of a law: those of matrix products, ``sort`` seconds to
put tokens in the order of their experts, ``token`` bytes a token moves there and back for each
of its experts, as multiples of its hidden size.
"""

import numpy as np

from weft.cost.matmul import Columns, Floats, Law
from weft.cost.recipes import Recipe, rated_flops
from weft.hardware import Device

_TILE = 64.0  # rows of a tile: few, because experts get few tokens


def moe_seconds(columns: Columns, device: Device, recipe: Recipe, law: Law) -> Floats:
    """Price the experts of one rank, gate and up projections and down projection."""
    held = np.maximum(columns["experts"] / columns["ep"], 1.0)
    inter = columns["inter"] / columns["tp"]
    routed = columns["tokens"] * columns["topk"] / columns["ep"]
    active = held * -np.expm1(routed * np.log1p(-np.minimum(1 / held, 1 - 1e-9)))
    active = np.minimum(active, routed)
    rows = np.maximum(np.ceil(routed / np.maximum(active, 1) / _TILE) * _TILE * active, _TILE)
    rate = rated_flops(device, recipe.math) * law["flops"]
    memory = device.memory_rated * law["memory"]
    by_units = 6 * rows * columns["hidden"] * inter / rate
    weights = 3 * active * columns["hidden"] * inter * recipe.weight
    moved = (weights + law["token"] * routed * columns["hidden"] * recipe.output) / memory
    power = law["sharpness"]
    seconds: Floats = law["launch"] + law["sort"] + (by_units**power + moved**power) ** (1 / power)
    return seconds
