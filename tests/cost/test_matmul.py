"""Matrix products by tiles: more work takes longer, and nothing beats the rated machine."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.cost.matmul import convolution_seconds, matmul_places, matmul_seconds
from weft.hardware import platform
from weft.hardware.dtypes import SCHEMES
from weft.hardware.kernel_fits import device_fits

DEVICE = platform("h100-8").require_device()
BF16 = SCHEMES["bf16"]
FITTED = {(fit.family, fit.dtype): dict(fit.coefficients) for fit in device_fits("any").fits}
COEFFICIENTS = FITTED["gemm", "bf16"]
SIDES = st.integers(1, 20000)


def seconds(m, n, k, batch=1, device=DEVICE, coefficients=COEFFICIENTS, **more):
    columns = {"m": m, "n": n, "k": k, "batch": batch, **more}
    arrays = {key: np.array([float(value)]) for key, value in columns.items()}
    return float(matmul_seconds(arrays, device, BF16, coefficients)[0])


@settings(max_examples=40)
@given(m=SIDES, n=SIDES, k=SIDES)
def test_no_product_is_faster_than_the_rated_machine(m, n, k):
    by_units = 2 * m * n * k / DEVICE.flops["bf16"].rated
    from_cache = (
        2 * (m * k + n * k + m * n) / max(DEVICE.memory_rated, 1.5 * DEVICE.kernels.l2_rate)
    )
    assert seconds(m, n, k) >= max(by_units, from_cache, COEFFICIENTS["launch"])


@settings(max_examples=40)
@given(m=SIDES, n=SIDES, k=SIDES)
def test_twice_the_depth_never_takes_less(m, n, k):
    assert seconds(m, n, 2 * k) >= seconds(m, n, k) * (1 - 1e-9)


def test_a_batch_of_products_takes_the_memory_of_each():
    one, many = seconds(64, 4096, 4096), seconds(64, 4096, 4096, batch=64)
    assert 64 * 2 * 4096 * 4096 / DEVICE.memory_rated < many < 64 * one


def test_faster_memory_helps_few_rows_and_not_many():
    fast = replace(DEVICE, memory_rated=2 * DEVICE.memory_rated)
    assert seconds(1, 16384, 16384, device=fast) < 0.6 * seconds(1, 16384, 16384)
    assert seconds(16384, 16384, 16384, device=fast) > 0.9 * seconds(16384, 16384, 16384)


def test_idle_units_of_a_last_wave_cost_what_the_coefficient_says():
    tile = 128 * 256 * DEVICE.units  # one wave of the largest tiles, and a tile more
    coefficients = COEFFICIENTS | {"waves": 1.0, "split": 1.0}
    full = seconds(tile // 256, 256, 65536, coefficients=coefficients)
    more = seconds(tile // 256 + 1, 256, 65536, coefficients=coefficients)
    smooth = seconds(tile // 256 + 1, 256, 65536, coefficients=coefficients | {"waves": 0.01})
    assert more > smooth
    assert more > full


def test_a_convolution_of_one_pixel_is_a_product():
    image = {"batch": 8, "channels": 256, "height": 28, "width": 28, "filters": 512, "kernel": 1}
    columns = {key: np.array([float(v)]) for key, v in (image | {"stride": 1, "groups": 1}).items()}
    found = convolution_seconds(columns, DEVICE, BF16, COEFFICIENTS)[0]
    assert found == pytest.approx(seconds(8 * 28 * 28, 512, 256))


def test_activations_that_are_quantised_first_pay_for_it():
    coefficients = COEFFICIENTS | {"quantise": 5.0, "row": 1e-9}
    assert (
        seconds(4096, 64, 4096, coefficients=coefficients) > seconds(4096, 64, 4096) + 4096 * 1e-9
    )


def test_rows_that_fill_no_eighth_stand_apart():
    places = matmul_places({"m": np.array([16.0, 17.0, 24.0, 257.0, 100000.0])})["tokens"]
    assert places.tolist() == [16.0, 17.0 * 2**20, 24.0, 257.0 * 2**20, 2.0**15]


def test_nothing_to_price_is_priced():
    empty = dict.fromkeys(("batch", "m", "n", "k"), np.zeros(0))
    assert matmul_seconds(empty, DEVICE, BF16, COEFFICIENTS).shape == (0,)
