"""Published figures stay within what is allowed."""

import pytest

from validation import c3
from weft.c3.mechanisms import NAMES, without
from weft.errors import UnknownNameError
from weft.hardware import platform

MACHINE = platform("mi300x-8")


@pytest.fixture(scope="module")
def means():
    return list(c3._means(MACHINE))


def test_the_means_of_the_strategies_are_as_published(means):
    assert [each.name for each in means if not each.met] == []
    assert len(means) == len(c3.MEANS) + 3


def test_units_that_are_lost_cost_what_was_published():
    assert [each.name for each in c3._lost_units(MACHINE) if each.met is False] == []


def test_two_published_slowdowns_of_gemms_with_an_all_reduce_are_missed():
    missed = [each.name for each in c3._overlapped_with_rccl(MACHINE) if each.met is False]
    assert missed == [
        "16384^3 overlapped with its all-reduce, static tiles",
        "8192^3 overlapped with its all-reduce, stealing tiles",
    ]


def test_small_gemms_suffer_more_and_dealt_tiles_most():
    slower = {
        (side, family): c3.gemm_slowdown(side, f"gemm-{family}", MACHINE)
        for side in (8192, 16384)
        for family in ("static", "stealing")
    }
    assert slower[8192, "static"] > slower[16384, "static"]
    assert slower[8192, "static"] > slower[8192, "stealing"]
    assert slower[16384, "static"] > slower[16384, "stealing"]


def test_fewer_numbers_are_fitted_than_figures_they_explain():
    fitted = [e for e in MACHINE.entries() if e.source.startswith("fitted;")]
    figures = [each for each in c3._means(MACHINE) if each.fitted and each.published]
    assert {e.key.rsplit(".", 1)[1] for e in fitted if ".kernels." in e.key} == {
        *("live_steps", "overcommit", "load_latency", "dispatch_share"),
    }
    assert len(fitted) < len(figures)


@pytest.mark.parametrize("name", NAMES)
def test_a_mechanism_can_be_switched_off_and_changes_something(name):
    off = c3.priced_list(without(MACHINE, name))
    assert [row.seconds for row in off] != [row.seconds for row in c3.priced_list(MACHINE)]


def test_without_load_and_admission_overlap_would_be_better():
    rows = c3.priced_list(MACHINE)
    for name, strategy in (("load", "dma"), ("load", "priority"), ("admission", "concurrent")):
        better = c3.priced_list(without(MACHINE, name))
        assert c3.mean_percent(better, strategy) > c3.mean_percent(rows, strategy) + 5


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(UnknownNameError, match="no mechanism"):
        without(MACHINE, "gravity")
