"""A GEMM as a grid: tiles, waves, traffic."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cost import gemm_grid, is_gemm
from weft.cost.gemm import TILES, refetched
from weft.hardware import platform
from weft.schedule import Cost

DEVICE = platform("mi300x-8").require_device()
sides = st.integers(1, 20000)


@pytest.mark.parametrize("side", [8192, 16384])
def test_a_large_gemm_runs_near_the_rate_that_is_sustained(side):
    seconds = gemm_grid((side, side, side), "bf16", DEVICE).alone(304, DEVICE)
    assert 0.8 < 2 * side**3 / seconds / 700e12 <= 1.0


def test_a_thin_gemm_runs_at_the_rate_of_the_memory():
    seconds = gemm_grid((16, 57344, 8192), "bf16", DEVICE).alone(304, DEVICE)
    weights = 2 * 57344 * 8192 / DEVICE.memory_rate
    assert weights <= seconds < 1.3 * weights


@given(m=sides, n=sides, k=sides, units=st.integers(1, 304))
def test_a_grid_covers_its_result_and_moves_its_operands_at_least_once(m, n, k, units):
    grid = gemm_grid((m, n, k), "bf16", DEVICE)
    assert grid.tiles * grid.tile[0] * grid.tile[1] >= m * n
    least = 2 * (m * k + n * k + m * n)
    assert grid.traffic_on(units, DEVICE) >= least * (1 - 1e-12)


@given(m=sides, n=sides, k=sides, units=st.integers(2, 304))
def test_more_units_never_take_more_waves(m, n, k, units):
    grid = gemm_grid((m, n, k), "bf16", DEVICE)
    assert grid.seconds(units) <= grid.seconds(units - 1)


@given(units=st.lists(st.integers(1, 304), min_size=1, max_size=8))
def test_one_number_of_units_gives_what_many_do(units):
    grid = gemm_grid((128, 106496, 16384), "bf16", DEVICE)
    many = grid.traffic(np.array(units, np.float64), DEVICE)
    assert many.tolist() == pytest.approx([grid.traffic_on(each, DEVICE) for each in units])


def test_fewer_workgroups_in_flight_fetch_fewer_lines_twice():
    shares = refetched(np.linspace(0, 3, 50), 16)
    assert shares[0] == 0
    assert (np.diff(shares) >= 0).all()
    assert refetched(np.array([0.5, 1.0, 2.0]), 16).tolist() == pytest.approx(
        [0.008231, 0.533, 0.9995], rel=2e-3
    )


def test_a_cache_that_keeps_nothing_live_refetches_nothing():
    steady = replace(DEVICE, kernels=replace(DEVICE.kernels, live_steps=0.0))
    grid = gemm_grid((128, 106496, 16384), "bf16", steady)
    assert grid.traffic_on(304, steady) < grid.traffic_on(304, DEVICE)


@pytest.mark.parametrize("family", ["gemm-lists", "gemm-stealing"])
def test_a_persistent_kernel_has_the_largest_tile(family):
    assert gemm_grid((512, 512, 512), "bf16", DEVICE, family).tile == TILES[0]


def test_local_memory_bounds_the_workgroups_of_a_unit():
    small = gemm_grid((64, 64, 4096), "bf16", DEVICE)
    assert small.slots > gemm_grid((8192, 8192, 8192), "bf16", DEVICE, "gemm-lists").slots == 1


def test_an_empty_product_is_no_grid():
    assert is_gemm(Cost("gemm", (64, 64, 64)))
    assert not is_gemm(Cost("gemm", (64, 0, 64)))


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_a_product_of_narrow_operands_writes_two_bytes_an_element(dtype):
    m, n, k = 8192, 8192, 128  # the result is most of the traffic
    grid = gemm_grid((m, n, k), dtype, DEVICE)
    least = m * k + n * k + 2 * m * n
    assert grid.traffic_on(304, DEVICE) >= least * (1 - 1e-12)
    assert grid.traffic(np.array([304.0]), DEVICE)[0] >= least * (1 - 1e-12)
