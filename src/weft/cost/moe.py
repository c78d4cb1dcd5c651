"""Seconds of a layer of experts: two grouped matrix products and what lies around them.

Of ``experts`` a rank holds its share ``1 / ep``, each cut ``tp`` times along its inner side. A
token goes to ``topk`` of them; those that get none are not read. A balanced batch asks all equally,
one with ``skew`` by the law of Zipf with that exponent. The products of a group are priced as
matrix products side by side. Servers keep a row for every token and expert of the batch, also for
experts of other ranks, and activations and sums pass over all of them. The coefficients: those
of matrix products, ``sort`` seconds to put tokens in the order of their experts, ``token`` how
often such a row passes the memory, ``crowd`` how much of a skewed batch stays on the rank that gets
most (0: none but its share, 1: all).
"""

from collections.abc import Mapping

import numpy as np

from weft.cost.matmul import Coefficients, Columns, Floats, matmul_seconds
from weft.hardware import Device
from weft.hardware.dtypes import QuantizationScheme


def moe_seconds(
    columns: Columns, device: Device, scheme: QuantizationScheme, coefficients: Coefficients
) -> Floats:
    """Price the experts of one rank: gate and up projections, then the down projection."""
    routed, active = routing(columns, coefficients)
    inner = columns["inter"] / columns["tp"]
    group = {"batch": active, "m": routed / active}
    up = matmul_seconds(
        {**group, "n": 2 * inner, "k": columns["hidden"]}, device, scheme, coefficients
    )
    down = matmul_seconds(
        {**group, "n": columns["hidden"], "k": inner}, device, scheme, coefficients
    )
    rows = columns["tokens"] * columns["topk"]
    passed = coefficients["token"] * rows * (columns["hidden"] + 2 * inner) * scheme.output
    around = coefficients["sort"] + passed / (device.memory_rated * coefficients["memory"])
    return around + up + down


def routing(columns: Columns, coefficients: Coefficients) -> tuple[Floats, Floats]:
    """Return the tokens that reach a rank, once for each of their experts, and those experts."""
    skewed = columns["skew"] > 0
    held = np.maximum(columns["experts"] / columns["ep"], 1.0)
    share = columns["ep"] ** -np.where(skewed, 1 - coefficients["crowd"], 1.0)
    routed = np.maximum(columns["tokens"] * columns["topk"] * share, 1.0)
    active = np.minimum(routed, held)
    if skewed.any():
        active[skewed] = _asked(routed[skewed], held[skewed], columns["skew"][skewed])
    return routed, np.clip(active, 1.0, routed)


def _asked(routed: Floats, held: Floats, skew: Floats) -> Floats:
    """Return how many experts get a token, where the e-th is asked in proportion to e^-skew."""
    place = np.arange(1.0, held.max() + 1)
    share = np.where(place <= held[:, None], place ** -skew[:, None], 0.0)
    share /= share.sum(axis=1, keepdims=True)
    asked: Floats = -np.expm1(-routed[:, None] * share).sum(axis=1)
    return asked


def moe_places(columns: Columns) -> Mapping[str, Floats]:
    """Return what corrections of experts look at: tokens of an expert, and bytes of all of them."""
    held = np.maximum(columns["experts"] / columns["ep"], 1.0)
    routed = columns["tokens"] * columns["topk"] / columns["ep"]
    return {
        "load": np.maximum(routed / held, 2.0**-9),
        "held": held,
        "inner": columns["inter"] / columns["tp"],
        "uneven": 1.0 + columns["skew"],
    }
