"""Experts of servers: which of them a batch asks for, and what passes over all of its rows."""

import numpy as np
import pytest

from weft.cost.moe import moe_seconds, routing
from weft.hardware import platform
from weft.hardware.dtypes import SCHEMES
from weft.hardware.kernel_fits import device_fits

COEFFICIENTS = {
    fit.dtype: fit.coefficients for fit in device_fits("h100").fits if fit.family == "moe"
}["bf16"]


def layer(tokens, **given):
    usual = {"hidden": 4096, "inter": 1536, "topk": 8, "experts": 128, "tp": 1, "ep": 1, "skew": 0}
    columns = {"tokens": tokens, **usual, **given}
    return {key: np.array([float(value)]) for key, value in columns.items()}


def seconds(tokens, **given):
    device = platform("h100-8").require_device()
    return float(moe_seconds(layer(tokens, **given), device, SCHEMES["bf16"], COEFFICIENTS)[0])


def active(tokens, **given):
    return float(routing(layer(tokens, **given), COEFFICIENTS)[1][0])


@pytest.mark.parametrize(("tokens", "experts"), [(1, 8), (4, 32), (16, 128), (64, 128)])
def test_a_balanced_batch_asks_for_as_many_experts_as_it_can(tokens, experts):
    assert active(tokens) == experts


def test_a_skewed_batch_asks_for_fewer_experts_and_at_last_for_all():
    assert active(16, skew=1.2) < active(16, skew=1.01) < 100
    assert active(100_000, skew=1.2) == pytest.approx(128, rel=1e-3)


def test_experts_are_read_once_whatever_the_tokens():
    assert seconds(32) < 1.1 * seconds(16)
    assert seconds(16) > 1.8 * seconds(8)


def test_rows_for_experts_of_other_ranks_are_passed_over_too():
    own = 16384 * 8 / 128 * 6 * 4096 * 1536 / 800e12  # seconds of the products of one expert
    assert seconds(16384, ep=128) > 10 * own
    assert seconds(16384, ep=128) > 1.5 * seconds(8192, ep=128)
