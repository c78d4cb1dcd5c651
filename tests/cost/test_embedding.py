"""Lookups priced by what a batch asks for."""

from dataclasses import replace

import numpy as np
import pytest

from weft.cost import price_columns
from weft.cost.embedding import BIN_NAMES, fitted_lookups, lookup_terms, measured_seconds
from weft.cost.recipes import RECIPES
from weft.hardware import Lookups, platform

GPU = platform("a100-8").require_device()
CPU = platform("cpu").require_device()
FP32 = RECIPES["fp32"]


def columns(**given):
    base = {"batch": 2048, "rows": 10**6, "dim": 64, "pooling": 20, "tables": 1, "zipf": 0}
    base |= dict.fromkeys(BIN_NAMES, 0)
    return {k: np.atleast_1d(np.asarray(v, float)) for k, v in (base | given).items()}


def many(seed=0, number=200):
    random = np.random.default_rng(seed)
    return {
        **columns(),
        **{name: np.zeros(number) for name in BIN_NAMES},
        "batch": random.integers(64, 4096, number).astype(float),
        "rows": 10.0 ** random.uniform(2, 7, number),
        "dim": random.choice([16.0, 32, 64, 128, 256], number),
        "pooling": random.integers(1, 60, number).astype(float),
        "tables": random.integers(1, 20, number).astype(float),
        "zipf": random.uniform(0, 1.3, number),
    }


def seconds(kind, device, **given):
    return float(price_columns(kind, columns(**given), device).seconds[0])


@pytest.mark.parametrize("kind", ["embedding", "embedding-backward"])
def test_rows_that_are_asked_for_again_are_cheaper(kind):
    taken = [seconds(kind, GPU, zipf=power, batch=65536) for power in (0.0, 0.8, 1.2)]
    assert taken == sorted(taken, reverse=True)
    assert taken[2] < 0.7 * taken[0]


def test_many_tables_take_the_time_of_each_beyond_one_launch():
    one, eight = seconds("embedding", GPU), seconds("embedding", GPU, tables=8)
    assert 4 * one < eight < 8.5 * one


def test_bins_stand_for_a_distribution():
    once = dict(zip(BIN_NAMES, [1.0, *[0.0] * 16], strict=True))
    often = dict(zip(BIN_NAMES, [*[0.0] * 12, 1.0, *[0.0] * 4], strict=True))
    assert seconds("embedding", GPU, **often) < seconds("embedding", GPU, **once)


def test_what_rows_take_is_found_from_measured_times():
    takes = Lookups(2e-6, 1e-9, 2e-11, 4e-9, 3e-11, 9e-9, 6e-11, 1e-11, 0.0)
    rows = many()
    found = fitted_lookups(rows, CPU, FP32, measured_seconds(rows, CPU, FP32, takes))
    unseen = many(seed=1)
    want = measured_seconds(unseen, CPU, FP32, takes)
    assert measured_seconds(unseen, CPU, FP32, found) == pytest.approx(want, rel=0.02)


@pytest.mark.parametrize("kind", ["embedding", "embedding-backward"])
def test_a_device_that_was_measured_is_priced_by_it(kind):
    takes = Lookups(start=1e-5, memory_row=1e-8, inner_row=1e-9, outer_row=1e-9)
    device = replace(CPU, lookups=takes, lookups_backward=takes)
    terms = lookup_terms(columns(), device, FP32)[0]
    assert seconds(kind, device) == pytest.approx(terms @ [1e-5, 1e-9, 0, 1e-9, 0, 1e-8, 0, 0, 0])
    assert seconds(kind, device) > 1e-5


def test_every_lookup_comes_from_somewhere():
    terms = lookup_terms(columns(zipf=1.05), CPU, FP32)[0]
    assert terms[1] + terms[3] + terms[5] == pytest.approx(2048 * 20)
