"""What a pair is worth by itself, which ways are worth trying, and what a search finds."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.toy import kernel, moves, pair_of, pricer_of, step_of, way
from weft.planner.choosing import Offer, _worth_trying, heuristic, search, without_losses
from weft.planner.lookup_ops import Lookups


def offer_of(base, *ways, pair=None):
    return Offer(pair or pair_of(), base, ways, ())


# One pair by itself: ten seconds of a collective, five of them beside kernels.


@pytest.mark.parametrize(
    ("tried", "seconds"),
    [
        (way(10), 10),  # the kernels are hidden by it
        (way(2), 5),  # it is hidden by the kernels
        (way(8, serial=True), 5 + 8),
        (way(8, serial=True, beside=3.0, compute=3.0), 5 + 8),  # nothing runs beside it
        (way(10, beside=1.4), 10 + 0.5 * 4),  # slowed for as long as kernels run
        (way(2, compute=1.5), 5 + 2 * 0.5),  # slows kernels while it is there
        (way(4, compute=2.5), 5 + 4 * 1.5),
        (way(6, compute=2.0), 5 + 5 * 1.0),  # there is no more than those to slow
        (way(10, pair=7.5), 7.5),  # somebody priced both together
    ],
)
def test_a_pair_is_its_kernels_and_what_they_do_not_hide(tried, seconds):
    offer = offer_of(way(10), pair=pair_of(hidden=0.5))
    assert offer.seconds(tried) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("making", "seconds"),
    [
        (8, 10 - 8 * 3 / 4 + 8 * 0.5),  # all but the last of four slices leave inside its maker
        (20, 10 - 10 * 3 / 4 + 20 * 0.5),  # a longer maker hides no more than there is
        (0, 10),
    ],
)
def test_slices_leave_inside_a_maker_that_gets_slower(making, seconds):
    offer = offer_of(way(10), pair=pair_of(hidden=0.0, making=making))
    assert offer.seconds(way(10, slices=4, producer=1.5)) == pytest.approx(seconds)


def test_lookups_belong_to_the_pair_unless_they_fall_away():
    found = tuple(Lookups((0,), (), seconds_now=seconds) for seconds in (4.0, 3.0))
    offer = offer_of(way(10), pair=pair_of(hidden=0.0, lookups=found))
    assert offer.seconds(way(10)) == 10 + 3  # ranks meet: the quickest has waited least
    assert offer.seconds(way(10, serial=True)) == 10 + 3
    assert offer.seconds(way(12, serial=True, freed=((0, 0),))) == 12


# Each pair by itself.


def test_the_fastest_is_chosen_and_of_equals_the_first():
    slow, near, best = way(9), way(5.004), way(5)
    assert heuristic([offer_of(way(10), slow, near, best)]) == [near]
    assert heuristic([offer_of(way(10), slow, way(5.006), best)]) == [best]


def test_nothing_is_changed_for_less_than_a_ten_thousandth():
    base = way(10)
    assert heuristic([offer_of(base, way(9.9995))]) == [base]
    assert heuristic([offer_of(base, way(9.998))]) == [way(9.998)]
    assert heuristic([offer_of(base, way(11))]) == [base]


def test_what_takes_no_time_is_left_alone():
    assert heuristic([offer_of(way(0), way(0, "priority"))]) == [way(0)]
    assert heuristic([offer_of(way(1), way(0, "priority"))]) == [way(0, "priority")]


# Which ways a search tries.


def tried(base, *ways):
    return _worth_trying(offer_of(base, *ways, pair=pair_of(hidden=0.5, making=0.0)))


GOOD = way(5, beside=1.2, compute=1.2, slices=0, producer=1.1)


@pytest.mark.parametrize(
    "worse",
    [
        way(6, beside=1.2, compute=1.2, producer=1.1),
        way(5, beside=1.3, compute=1.2, producer=1.1),
        way(5, beside=1.2, compute=1.3, producer=1.1),
        way(5, beside=1.2, compute=1.2, producer=1.2),
        way(5, beside=1.2, compute=1.2, producer=1.1, serial=True),
        way(5, beside=1.2, compute=1.2, producer=1.1),
    ],
)
def test_a_way_that_is_no_better_in_anything_is_not_tried(worse):
    assert tried(GOOD, worse) == [GOOD]


@pytest.mark.parametrize(
    "other",
    [
        way(7, beside=1.0, compute=1.0, producer=1.1),  # leaves kernels alone
        way(6, beside=0.5, compute=6.0, producer=1.1),  # quicker beside them
        way(6, beside=1.2, compute=1.2, producer=1.0),  # leaves its maker alone
        way(7, beside=1.2, compute=1.2, producer=1.1, slices=4),  # leaves in slices
        way(40, beside=1.2, compute=1.2, producer=1.1, freed=((0, 1),)),  # other ops fall away
    ],
)
def test_a_way_that_is_better_in_something_is_tried(other):
    assert set(tried(GOOD, other)) == {GOOD, other}


@pytest.mark.parametrize(
    ("best", "other"),
    [
        (way(5, slices=4), way(6)),
        (way(5, freed=((0, 1),)), way(6)),
        (way(5, serial=True), way(6, serial=True)),
        (way(5, compute=1.5), way(10, compute=1.25)),  # half as much for twice as long
    ],
)
def test_what_is_as_good_and_more_covers_the_rest(best, other):
    assert tried(other, best) == [best]


def test_what_runs_on_the_stream_of_the_kernels_covers_nothing_that_runs_beside_them():
    quick, beside = way(1, serial=True), way(20)
    assert tried(beside, quick) == [quick, beside]


def test_a_slow_down_counts_for_as_long_as_the_collective_takes_beside_kernels():
    long, short = way(5, beside=1.5, compute=1.1), way(5.5, beside=1.5, compute=1.05)
    assert set(tried(long, short)) == {long, short}


def test_of_pairs_that_were_priced_themselves_only_the_best_are_tried():
    best, near, far = (way(5, compute=1 + s, pair=p) for s, p in ((0.3, 10), (0.2, 10.04), (0, 11)))
    assert tried(far, near, best) == [best, near]
    assert tried(way(5, compute=1.1, pair=10.06), best) == [best]
    assert tried(way(20), best) == [best]
    assert tried(way(0, pair=0.0)) == [way(0, pair=0.0)]


# The whole step, whatever a step takes: here, what a table says.


class Table:
    """A step whose seconds are written down for each combination of ways."""

    def __init__(self, seconds: Any) -> None:
        self._seconds = seconds
        self.asked: list[tuple[Any, ...]] = []

    def seconds(self, ways: Any) -> float:
        chosen = tuple(each.strategy for _, each in ways)
        self.asked.append(chosen)
        return float(self._seconds[chosen])


def named(*names, count):
    """Pairs with ways of these names, the first as torch does it; none covers another."""
    made = [way(10 - n, name, compute=1 + n) for n, name in enumerate(names)]
    return [offer_of(made[0], *made[1:]) for _ in range(count)]


def names_of(ways):
    return tuple(each.strategy for each in ways)


def searched(offers, seconds, start=None):
    table: Any = Table(seconds)
    found = search(offers, table, start or [offer.base for offer in offers])
    return names_of(found), table


def test_a_search_changes_one_pair_after_the_other():
    seconds = {("a", "a"): 9, ("b", "a"): 8, ("a", "b"): 9, ("b", "b"): 7}
    assert searched(named("a", "b", count=2), seconds)[0] == ("b", "b")


def test_what_pays_only_after_a_later_change_is_found_in_the_next_round():
    seconds = {("a", "a"): 20, ("b", "a"): 20, ("a", "b"): 10, ("b", "b"): 5}
    assert searched(named("a", "b", count=2), seconds)[0] == ("b", "b")


def test_a_search_ends_where_no_change_helps():
    seconds = {("a",): 1.0, ("b",): 1.0 - 5e-5, ("c",): 2.0}
    found, table = searched(named("a", "b", "c", count=1), seconds)
    assert found == ("a",)  # half a ten-thousandth is no reason
    assert sorted(table.asked) == [("a",), ("b",), ("c",)]


def test_a_step_that_takes_no_time_is_left_alone_at_once():
    found, table = searched(named("a", "b", count=1), {("a",): 0.0, ("b",): 0.0})
    assert found == ("a",)
    assert table.asked == [("a",), ("b",)]


def test_a_search_goes_on_from_where_it_starts():
    offers = named("a", "b", count=2)
    seconds = {("a", "a"): 5, ("b", "a"): 9, ("a", "b"): 9, ("b", "b"): 7}
    second = [offer.ways[0] for offer in offers]
    assert searched(offers, seconds, second)[0] == ("b", "b")


tables = st.integers(1, 3).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(st.integers(1, 50), min_size=3**count, max_size=3**count),
    )
)


def as_table(count, seconds):
    return dict(zip(product("abc", repeat=count), seconds, strict=True))


@given(tables)
def test_no_plan_is_slower_than_none_or_than_its_start(drawn):
    count, seconds = drawn
    offers, table = named("a", "b", "c", count=count), as_table(count, seconds)
    start = heuristic(offers)
    found, _ = searched(offers, table, start)
    assert table[found] <= table[names_of(start)]
    pricer: Any = Table(table)
    kept = names_of(without_losses(offers, pricer, search(offers, pricer, start)))
    assert table[kept] <= min(table[found], table[("a",) * count])


@given(st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), min_size=1, max_size=3))
def test_where_pairs_do_not_touch_each_other_a_search_finds_the_best_of_all(each):
    count = len(each)
    sums = [
        sum(seconds["abc".index(name)] for seconds, name in zip(each, chosen, strict=True))
        for chosen in product("abc", repeat=count)
    ]
    found, _ = searched(named("a", "b", "c", count=count), as_table(count, sums))
    assert as_table(count, sums)[found] == min(sums)


# What the whole step does not gain by is taken back.


def kept(seconds, *chosen):
    offers = named("a", "b", count=len(chosen))
    pairs = zip(offers, chosen, strict=True)
    ways = [offer.base if name == "a" else offer.ways[0] for offer, name in pairs]
    table: Any = Table(seconds)
    return names_of(without_losses(offers, table, ways))


def test_a_change_that_the_step_does_not_gain_by_is_taken_back():
    seconds = {("a", "a"): 9, ("b", "a"): 9, ("a", "b"): 5, ("b", "b"): 5}
    assert kept(seconds, "b", "b") == ("a", "b")


def test_changes_that_the_step_gains_by_are_kept():
    seconds = {("a", "a"): 9, ("b", "a"): 8, ("a", "b"): 8, ("b", "b"): 7}
    assert kept(seconds, "b", "b") == ("b", "b")
    assert kept(seconds, "a", "b") == ("a", "b")


def test_a_gain_of_less_than_a_ten_thousandth_is_taken_back():
    assert kept({("a",): 1.0, ("b",): 1.0 - 5e-5}, "b") == ("a",)
    assert kept({("a",): 1.0, ("b",): 1.0 - 5e-4}, "b") == ("b",)
    assert kept({("a",): 0.0, ("b",): 0.0}, "b") == ("a",)


def test_changes_that_lose_only_together_are_all_taken_back():
    seconds = {("a", "a"): 9, ("b", "a"): 20, ("a", "b"): 20, ("b", "b"): 10}
    assert kept(seconds, "b", "b") == ("a", "a")


# The same on steps that are walked through.


def test_a_search_leaves_out_nothing_that_a_real_step_needs():
    # Two collectives in a row, each waited for by a kernel: seconds add up.
    step = step_of(moves(10), kernel("first", 1, 0), moves(10, 1), kernel("second", 1, 2))
    first = offer_of(way(10), way(6), way(8), way(7, serial=True), pair=pair_of(0))
    second = offer_of(way(10), way(4), way(9), way(12, freed=((0, 3),)), pair=pair_of(2))
    pricer = pricer_of(step)
    found = search([first, second], pricer, [first.base, second.base])
    best = min(
        pricer.seconds([(first.pair, one), (second.pair, other)])
        for one in (first.base, *first.ways)
        for other in (second.base, *second.ways)
    )
    assert pricer.seconds([(first.pair, found[0]), (second.pair, found[1])]) == best
    assert best == pytest.approx(6 + 1 + 4 + 1)
