"""Choices in words: what decided, what was not chosen, and why."""

from __future__ import annotations

import pytest

from tests.planner.toy import GATHER, pair_of, way
from weft.cost.price import Price
from weft.planner.choosing import Offer
from weft.planner.explaining import choice_of, name_of, why
from weft.planner.ways import Pair, Way, refused
from weft.workload import Collective

LATER = refused("dma", "there are no engines")


def said(base, chosen, *others, hidden=0.5):
    return why(Offer(pair_of(hidden=hidden), base, (chosen, *others), ()), chosen)


# What was chosen.


@pytest.mark.parametrize(
    ("pair", "name"),
    [
        (pair_of(), "all_gather 1 MiB"),
        (pair_of(phase="forward"), "all_gather 1 MiB, forward"),
        (pair_of(beside="mm", made_by="up"), "all_gather 1 MiB, beside mm"),
        (pair_of(made_by="up"), "all_gather 1 MiB, after up"),
        (pair_of(what=Collective("send", 8, group="tp")), "send 8 B of tp"),
        (
            pair_of(what=Collective("send", 8, group="tp"), phase="backward", beside="mm"),
            "send 8 B of tp, backward, beside mm",
        ),
    ],
)
def test_a_pair_is_named_by_its_collective_and_what_runs_beside_it(pair, name):
    assert name_of(pair) == name


@pytest.mark.parametrize(
    ("hidden", "other", "reason"),
    [
        (0.96, way(1), "already hidden by what runs beside it"),
        (0.95, way(5), "the step does not wait for it: a faster way gains nothing"),
        (0.0, way(9.5), "the step does not wait for it: a faster way gains nothing"),
        (0.0, way(9.95), "nothing that can be done here is faster"),  # by half a percent
        (0.0, way(11), "nothing that can be done here is faster"),
    ],
)
def test_what_torch_does_is_kept_for_a_reason(hidden, other, reason):
    base = way(10)
    offer = Offer(pair_of(hidden=hidden), base, (other,), ())
    assert why(offer, base) == reason


def test_what_takes_no_time_has_nothing_faster():
    base, other = way(0), way(0, "priority")
    assert why(Offer(pair_of(), base, (other,), ()), base).startswith("nothing")
    assert said(base, other) == "the whole step is faster with it"
    assert alternatives(base, other)[0].why == "no faster, and asks for more"


def test_the_quickest_other_way_says_whether_one_is_faster():
    base = way(10)
    offer = Offer(pair_of(), base, (way(20), way(5)), ())
    assert why(offer, base).startswith("the step does not wait")


@pytest.mark.parametrize(
    ("base", "chosen", "reason"),
    [
        (way(10), way(5), "5 s instead of 10 s"),
        (way(10), way(5, why="by engines"), "by engines; 5 s instead of 10 s"),
        (way(10), way(9.95, "priority"), "the whole step is faster with it"),
        (way(10, beside=3.0), way(10), "10 s instead of 20 s"),  # hidden by half
        (way(10, beside=3.0), way(10, serial=True, beside=9.0), "10 s instead of 20 s"),
        (way(10), way(5, slices=4, why="sliced"), "sliced"),  # seconds that are hidden, too
        (way(10), way(4, slices=4), "the whole step is faster with it"),
        (way(10, compute=1.2), way(10), "kernels beside it as fast as alone, not 20 % slower"),
        (
            way(10, compute=1.2),
            way(10, compute=1.1),
            "kernels beside it 10 % slower, not 20 % slower",
        ),
        (way(10), way(5, compute=1.1), "5 s instead of 10 s; kernels beside it 10 % slower"),
        (way(10, compute=1.1), way(5, compute=1.101), "5 s instead of 10 s"),
        (way(10, compute=1.101), way(5, compute=1.1), "5 s instead of 10 s"),
        (way(10, compute=1.002), way(5), "5 s instead of 10 s"),
        (way(10), way(5, compute=1.002), "5 s instead of 10 s"),
        (
            way(10, compute=1.2),
            way(10, compute=1.004),
            "kernels beside it as fast as alone, not 20 % slower",
        ),
        (
            way(10, compute=1.2),
            way(10, compute=1.006),
            "kernels beside it 1 % slower, not 20 % slower",
        ),
    ],
)
def test_a_change_is_made_for_a_reason(base, chosen, reason):
    assert said(base, chosen) == reason


def test_a_choice_has_the_range_of_its_collective():
    offer = Offer(pair_of(hidden=0.5), way(10), (way(20),), ())
    found = choice_of(offer, way(20), gain=0.25)
    assert (found.seconds, found.low, found.high) == pytest.approx((20, 18, 22))
    assert found.gain == 0.25
    nothing = Way("dma", Price(0.0, 0.0, 0.0))
    found = choice_of(Offer(pair_of(), way(10), (nothing,), ()), nothing, 0.0)
    assert (found.seconds, found.low, found.high) == (0, 0, 0)


def test_the_range_of_a_pair_is_as_wide_as_that_of_its_collective():
    # 5 s of kernels beside a collective of 2 s, give or take a tenth.
    found = choice_of(Offer(pair_of(hidden=0.5), way(10), (), ()), way(2), gain=0.0)
    assert (found.seconds, found.low, found.high) == pytest.approx((5, 4.5, 5.5))


def test_a_choice_says_which_ops_of_the_first_class_of_ranks_it_is_for():
    members = ((1, 4), (1, 7), (2, 5))
    pair = Pair(GATHER, (0, 1), members, 0.5, 0.5, phase="backward")
    found = choice_of(Offer(pair, way(10), (), ()), way(10), gain=0.0)
    assert (found.step, found.op, found.ops, found.phase) == (1, 4, (4, 7), "backward")
    assert (found.collective, found.strategy) == (GATHER, "concurrent")


# What was not.


def alternatives(base, chosen, *others, barred=()):
    return choice_of(Offer(pair_of(), base, (chosen, *others), barred), chosen, 0.0).alternatives


def test_other_ways_come_fastest_first_and_what_cannot_be_done_last():
    base, chosen = way(10), way(5, "dma")
    found = alternatives(base, chosen, way(8, "serial"), way(7, "priority"), barred=(LATER,))
    assert [each.strategy for each in found] == ["priority", "serial", "concurrent", "dma"]
    assert [each.seconds for each in found] == [7, 8, 10, None]
    assert found[-1] is LATER


def test_of_each_strategy_the_fastest_is_told_for_each_backend():
    base, chosen = way(10, settings={"backend": "gloo"}), way(5, "dma")
    weft = (way(s, settings={"backend": "weft", "algorithm": str(s)}) for s in (8, 7))
    found = alternatives(base, chosen, *weft)
    assert [(each.seconds, each.settings) for each in found] == [
        (7, {"backend": "weft", "algorithm": "7"}),
        (10, {"backend": "gloo"}),
    ]


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        (6, "the pair takes 6 s, not 5 s"),
        (5.02, "the pair takes 5.02 s, not 5 s"),
        (5.004, "no faster, and asks for more"),
        (5, "no faster, and asks for more"),
        (4.996, "no faster, and asks for more"),
        (4.98, "quicker by itself, but the whole step gains no more by it"),
    ],
)
def test_what_was_not_chosen_is_slower_or_gains_nothing(seconds, reason):
    (found,) = alternatives(way(seconds), way(5, "dma"))
    assert found.why == reason
