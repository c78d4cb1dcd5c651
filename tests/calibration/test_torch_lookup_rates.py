"""Lookups measured on this machine: what is measured, and which cost models follow from it."""

from dataclasses import replace

import pytest

from weft.cost.lookups import core_seconds
from weft.hardware import Lookups, platform
from weft.models.tables import Table

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from benchmarks.torch_op_timings import corrected_lookups  # noqa: E402
from weft.calibration.torch_lookup_rates import (  # noqa: E402
    ITEM,
    LookupCase,
    LookupTimes,
    Measured,
    Stopwatch,
    TimedLookup,
    cases,
    columns_of,
    undisturbed,
)


def test_every_kind_of_lookup_is_measured():
    found = Stopwatch(1 << 20).times(Table("t", 500, 16, 3, 1.05), batch=40, rounds=1, most=3)
    assert set(found) == {"torch", "torch_backward", "weft", "weft_backward"}
    assert all(each.seconds > 0 and each.rounds >= 1 and each.floor >= 0 for each in found.values())


def test_what_was_disturbed_does_not_count():
    quiet, slept, disturbed = (
        TimedLookup(1, 1.0, 0.99),
        TimedLookup(2, 1.0, 0.5),
        TimedLookup(3, 1.5, 1.0),
    )
    assert undisturbed([quiet, slept, disturbed], usual=1.0) == [quiet]


def test_cases_are_of_every_kind():
    given = list(cases())
    columns = columns_of(given)
    assert len({case.table.dim for case in given}) > 5
    assert (columns["zipf"] == 0).mean() == pytest.approx(0.25, abs=0.1)
    assert columns["rows"].max() / columns["rows"].min() > 1000
    assert (columns["rows"] * columns["dim"] * 4).max() <= 256 << 20


def test_lookups_that_took_half_as_long_again_are_priced_so():
    coefficients = Lookups(start=1e-6, lookup=2e-8, memory_byte=1e-10)
    here = platform("cpu")
    device = replace(
        here.require_device(), lookups={"weft": coefficients, "weft_backward": coefficients}
    )
    given = [LookupCase(Table("t", rows, 64, 20, 1.05), 256) for rows in (1000, 100_000)]
    columns = columns_of(given)
    taken = {
        name: 1.5 * core_seconds(columns, ITEM, coefficients, backward=name.endswith("_backward"))
        for name in device.lookups
    }
    found: Measured = [
        (case, {name: LookupTimes(float(taken[name][n]), 0.0, 2) for name in taken})
        for n, case in enumerate(given)
    ]
    sharp = corrected_lookups(replace(here, device=device), [found]).require_device().lookups
    for name, each in sharp.items():
        again = core_seconds(columns, ITEM, each, backward=name.endswith("_backward"))
        assert again == pytest.approx(taken[name])
