"""Corrections on a grid: what is packed comes back, and lines stay lines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.cost.grid import corrections, elasticities
from weft.hardware.kernel_fits import SMALLEST_STEP, correction_table, grid_axes, packed


def table_of(function):
    """A function of the logarithms of rows and width, at the knots of a small grid."""
    axes = grid_axes("softmax")
    return function(*np.meshgrid(*axes.values(), indexing="ij"))


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), size=st.floats(0.01, 5))
def test_what_is_packed_comes_back_to_half_a_step(seed, size):
    table = np.random.default_rng(seed).normal(size=table_of(lambda r, w: r * w).shape) * size
    correction = packed(table, "softmax")
    inside = np.abs(table) <= 127 * correction.step
    assert np.abs(correction_table(correction) - table)[inside].max() <= correction.step * 0.5001
    assert correction.step >= SMALLEST_STEP


@settings(max_examples=30)
@given(rows=st.floats(1, 16384), width=st.floats(8, 4096))
def test_between_knots_it_is_linear_in_the_logarithms(rows, width):
    correction = packed(table_of(lambda r, w: 0.1 * r - 0.05 * w), "softmax")
    found = corrections(correction, {"rows": np.array([rows]), "width": np.array([width])})
    want = 0.1 * np.log2(rows) - 0.05 * np.log2(width)
    assert found[0] == pytest.approx(want, abs=correction.step)


def test_outside_the_grid_the_last_knot_counts():
    correction = packed(table_of(lambda r, w: 0.1 * r + 0 * w), "softmax")
    columns = {"rows": np.array([2.0**14, 2.0**30]), "width": np.array([64.0, 64.0])}
    inside, outside = corrections(correction, columns)
    assert inside == outside


def test_an_elasticity_says_what_a_kernel_is_bound_by():
    nbytes = np.array([1.0, 1e6, 1e12])

    def predicted(coefficients):
        return coefficients["launch"] + nbytes / coefficients["memory"]

    found = elasticities(("launch", "memory"), predicted, {"launch": 1e-6, "memory": 1e12})
    assert found[:, 0] == pytest.approx([1.0, 0.5, 0.0], abs=0.02)
    assert found[:, 1] == pytest.approx([0.0, -0.5, -1.0], abs=0.02)
