"""Published figures stay within what is allowed."""

import pytest

from validation import c3
from weft.c3 import Gemm
from weft.c3.mechanisms import NAMES, without
from weft.c3.strategies import grid_of
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


def test_published_slowdowns_of_gemms_with_an_all_reduce_are_met():
    limited = [each for each in c3._overlapped_with_rccl(MACHINE) if each.met is not None]
    assert len(limited) == 3
    assert [each.name for each in limited if not each.met] == []


def test_tiles_that_fill_whole_waves_suffer_most_and_lists_more_than_counters():
    slower = {
        (side, tiles): c3.slower(side, tiles, MACHINE)
        for side in (4096, 8192, 16384)
        for tiles in ("static", "lists", "stealing")
    }
    assert slower[4096, "static"] > slower[8192, "static"] > slower[16384, "static"]
    assert slower[8192, "static"] > slower[8192, "stealing"] + 20
    assert slower[8192, "lists"] > slower[8192, "stealing"] + 20


def test_hipblaslt_chooses_the_tiles_that_were_recorded_and_runs_as_fast():
    """torch.matmul of 8192^3: tiles of 256 x 224, 1.633 ms; the stealing kernel 1.88 ms."""
    grid = grid_of(Gemm(8192, 8192, 8192), MACHINE.require_device())
    assert grid.tile == (256, 224)
    assert grid.alone(304, MACHINE.require_device()) == pytest.approx(1.633e-3, rel=0.01)
    taken = grid_of(Gemm(8192, 8192, 8192, tiles="stealing"), MACHINE.require_device())
    assert taken.alone(304, MACHINE.require_device()) == pytest.approx(1.88e-3, rel=0.01)


def test_fewer_numbers_are_fitted_than_figures_they_explain():
    fitted = [e for e in MACHINE.entries() if e.source.startswith("fitted;")]
    figures = [each for each in c3._means(MACHINE) if each.fitted and each.published]
    assert {e.key.rsplit(".", 1)[1] for e in fitted if ".kernels." in e.key} == {
        *("live_steps", "overcommit", "load_latency", "dispatch_share", "held_watts"),
    }
    assert len(fitted) < len(figures)


@pytest.mark.parametrize("name", NAMES)
def test_a_mechanism_can_be_switched_off_and_changes_something(name):
    off = c3.priced_list(without(MACHINE, name))
    assert [row.seconds for row in off] != [row.seconds for row in c3.priced_list(MACHINE)]


@pytest.mark.parametrize(
    ("name", "strategy"), [("clock", "dma"), ("load", "priority"), ("admission", "concurrent")]
)
def test_without_clocks_load_and_admission_overlap_would_be_better(name, strategy):
    rows = c3.priced_list(MACHINE)
    better = c3.priced_list(without(MACHINE, name))
    assert c3.mean_percent(better, strategy) > c3.mean_percent(rows, strategy) + 5


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(UnknownNameError, match="unknown mechanism"):
        without(MACHINE, "gravity")
