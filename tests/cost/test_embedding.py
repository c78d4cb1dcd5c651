"""Lookups priced by what a batch asks for."""

from dataclasses import replace

import numpy as np
import pytest

from weft.cost import price_columns
from weft.cost.lookups import (
    BIN_NAMES,
    TERMS,
    core_seconds,
    fitted_lookups,
    lookup_terms,
    spectrum_of,
)
from weft.hardware import Lookups, platform

GPU = platform("a100-8").require_device()
CPU = platform("cpu").require_device()


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


def named(terms):
    return dict(zip(TERMS, terms, strict=True))


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


@pytest.mark.parametrize("backward", [False, True])
def test_what_rows_take_is_found_from_measured_times(backward):
    takes = Lookups(2e-6, 1e-9, 2e-11, 4e-9, 3e-11, 9e-9, 6e-11, 1e-8, 1e-10, 7e-9, 2e-8, 4e-8)
    rows = many()
    rows["tables"][:] = 1
    found = fitted_lookups(
        rows, 4, core_seconds(rows, 4, takes, backward=backward), Lookups(), backward=backward
    )
    unseen = many(seed=1)
    want = core_seconds(unseen, 4, takes, backward=backward)
    assert core_seconds(unseen, 4, found, backward=backward) == pytest.approx(want, rel=0.02)
    assert found.error < 0.01


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("embedding", "torch"),
        ("embedding-backward", "torch_backward"),
        ("fused-embedding", "weft"),
        ("fused-embedding-backward", "weft_backward"),
    ],
)
def test_a_device_that_was_measured_is_priced_by_it(kind, by):
    device = replace(CPU, lookups={by: Lookups(start=1e-5, lookup=1e-9)})
    assert seconds(kind, device) == pytest.approx(1e-5 + 2048 * 20 * 1e-9)
    assert seconds(kind, device, tables=3) == pytest.approx(3 * seconds(kind, device))
    assert seconds(kind, CPU) != pytest.approx(seconds(kind, device), rel=0.01)


def test_rows_of_a_core_come_from_memory_once_and_then_from_the_last_cache():
    takes = Lookups(inner_bytes=1, outer_bytes=1 << 40)
    terms = named(lookup_terms(columns(zipf=1.05), 4, takes, backward=False)[0])
    unique = spectrum_of(columns(zipf=1.05)).unique[0]
    assert terms["memory_row"] == pytest.approx(unique)
    assert terms["outer_row"] == pytest.approx(2048 * 20 - unique, rel=0.01)
    assert terms["lookup_byte"] == 2048 * 20 * 256
    assert terms["leaf"] < terms["page"] < unique


def test_wide_rows_take_several_pages_each():
    takes, wide = Lookups(), columns(dim=4096, rows=10**7)
    terms = named(lookup_terms(wide, 4, takes, backward=True)[0])
    assert terms["page"] == pytest.approx(4 * terms["memory_row"], rel=1e-6)


@pytest.mark.parametrize("backward", [False, True])
def test_empty_bags_have_no_rows_to_bring(backward):
    terms = named(lookup_terms(columns(pooling=0), 4, Lookups(), backward=backward)[0])
    assert terms["bag"] == 2048
    assert [terms[name] for name in ("lookup", "memory_row", "alone", "page")] == [0.0] * 4
