"""Fused operators between hosts: the cases, and what is said about them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import fused, links
from benchmarks.lookups import Lookups
from benchmarks.rows import Options
from weft.errors import UnknownNameError

seconds = st.floats(0.01, 10)


def found(compute, communicate, fused, core=0.0):
    times = {"compute": compute, "communicate": communicate, "core": core, "fused": fused}
    case = {"operator": "all_gather_linear", "rows": 8, "depth": 4, "width": 2}
    return {"case": case, "times": [times] * 3, "same": True}


def row(*times):
    return links.row_of("all_gather_linear", "1 Gbit/s", found(*times))


@given(seconds, seconds)
def test_all_is_gained_at_the_longer_half_and_nothing_at_the_sum(compute, communicate):
    best = row(compute, communicate, max(compute, communicate))
    assert best.more["share_of_ideal"] == pytest.approx(1)
    assert best.more["met"]
    worst = row(compute, communicate, compute + communicate)
    assert worst.more["share_of_ideal"] == pytest.approx(0, abs=1e-9)
    assert worst.more["share_of_sum_removed"] == pytest.approx(0, abs=1e-9)
    assert not worst.more["met"]


@given(seconds, seconds)
def test_core_time_of_sending_hides_only_behind_the_wire(compute, communicate):
    spent = row(compute, communicate, compute + communicate, communicate)
    assert spent.more["attainable"] == pytest.approx(0, abs=1e-9)
    assert row(compute, communicate, compute + communicate).more["attainable"] == pytest.approx(1)


def test_attainable_lies_between_where_some_core_time_is_spent():
    # Alone 2 and 1, together 2.25 at best: a third of the speed that could be gained is lost.
    assert row(2.0, 1.0, 3.0, 0.25).more["attainable"] == pytest.approx(2 / 3)


def test_the_share_of_the_sum_that_is_gone_is_told():
    assert row(1.0, 1.0, 1.5).more["share_of_sum_removed"] == pytest.approx(0.25)


def test_other_results_are_never_enough():
    wrong = {**found(1.0, 1.0, 1.0), "same": False}
    assert not links.row_of("all_gather_linear", "1 Gbit/s", wrong).more["met"]


def test_there_are_nine_cases_of_embeddings():
    assert len(links.LOOKUPS) == len(set(links.LOOKUPS)) == 9
    assert fused.count_rows(Options(rates=(1e8,))) == 9 + len(links.PRODUCTS)
    assert fused.count_rows(Options(rates=(1e8,), collectives=links.OPERATORS[1:2])) == 3


def test_what_runs_between_hosts_is_known():
    with pytest.raises(UnknownNameError, match="unknown operator"):
        next(iter(fused.run(Options(rates=(1e8,), collectives=("dlrm_step",)))))


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.netns
@pytest.mark.multiprocess
def test_fused_operators_run_between_hosts(monkeypatch):
    small = Lookups(4, 50, 8, 12, 3, 0.0)
    monkeypatch.setattr(links, "LOOKUPS", (small,))
    products = [links.Multiplied(name, 16, 4, 8) for name in links.OPERATORS[1:]]
    monkeypatch.setattr(links, "PRODUCTS", tuple(products))
    rows = list(fused.run(Options(rates=(1e9 / 8,), rounds=1)))
    assert [each.case["operator"] for each in rows] == list(links.OPERATORS)
    assert all(each.more["same"] for each in rows)
