"""Overlap on this machine: what is counted, where threads stand, and that it runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.c3.scenarios import percent_of_ideal
from weft.errors import UsageError
from weft.local_runs.overlap_measurement import (
    STRATEGIES,
    OverlapCase,
    OverlapOutcome,
    OverlapTimes,
    applies,
    figures,
    measure,
    placement,
)

times = st.floats(1e-3, 10.0)


@given(compute=times, comm=times, share=st.floats(0.01, 1.0))
def test_percent_goes_from_serial_to_ideal(compute, comm, share):
    serial, ideal = compute + comm, max(compute, comm)
    between = ideal + share * (serial - ideal)
    assert percent_of_ideal(serial, ideal, ideal) == pytest.approx(100)
    assert percent_of_ideal(serial, ideal, serial) == pytest.approx(0, abs=1e-6)
    assert -1e-6 <= percent_of_ideal(serial, ideal, between) <= 100 + 1e-6


def outcome(slowdown, *rounds):
    return OverlapOutcome(OverlapCase("all_gather", 64, 1.0), "dma", rounds, 1, 1, slowdown)


def test_the_best_round_of_each_figure_counts():
    found = outcome(1.0, OverlapTimes(2.0, 5.0, 9.0, 4.0), OverlapTimes(3.0, 3.0, 6.0, 8.0))
    assert found.best == OverlapTimes(2.0, 3.0, 6.0, 4.0)
    assert found.ideal == 3.0
    assert figures(found)["percent_of_ideal"] == pytest.approx(100 * (5 / 4 - 1) / (5 / 3 - 1))
    assert figures(found)["class"] == "C-long"


def test_a_memory_that_slows_nothing_bounds_nothing():
    assert outcome(1.0, OverlapTimes(3.0, 2.0, 5.0, 4.0)).bound == pytest.approx(100)
    assert outcome(2.0, OverlapTimes(3.0, 2.0, 5.0, 4.0)).bound < 50


def test_a_partition_keeps_the_product_from_what_communicates():
    computing, engines = (
        placement("partition", 0).cores_of_caller(),
        placement("partition", 0).cores,
    )
    assert placement("partition", 1).caller == engines == placement("partition", 1).cores
    assert placement("dma", 0) == placement("partition", 0)
    assert computing is not None
    assert len(computing) == 1


def test_engines_do_not_add_up():
    assert [kind for kind in ("all_gather", "all_reduce") if applies("dma", kind)] == ["all_gather"]


@pytest.mark.parametrize(("kind", "ranks"), [("barrier", 2), ("all_gather", 1)])
def test_what_cannot_be_measured_is_refused(kind, ranks):
    with pytest.raises(UsageError):
        measure(kind, 1024, (1.0,), ranks, 1)


@pytest.mark.multiprocess
@pytest.mark.timeout(180)
def test_every_strategy_is_measured_in_every_ratio():
    found = measure("all_to_all", 1000, (1.0, 2.0), 2, 1)
    assert {(each.case.ratio, each.strategy) for each in found} == {
        (ratio, name) for ratio in (1.0, 2.0) for name in STRATEGIES
    }
    assert all(each.case.nbytes == 1024 for each in found)
    assert all(value > 0 for each in found for value in each.best)
