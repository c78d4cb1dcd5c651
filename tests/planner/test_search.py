"""What a search finds: the best combination, and nothing that does not shorten the step."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.toy import candidate, evaluator_of, group_of, kernel, moves, step_of
from weft.planner.search import GroupOptions, Search


def search_of(step, *options):
    return Search([GroupOptions(group, base, tuple(rest), ()) for group, base, rest in options],
                  evaluator_of(step))  # fmt: skip


# Two exposed collectives, one after the other.
TWO = step_of(moves(4), kernel("a", 1, 0), moves(6, 1), kernel("b", 1, 2))


def test_the_best_candidate_of_each_group_is_taken():
    base, quick, quicker = candidate(4), candidate(3), candidate(2)
    search = search_of(TWO, (group_of(0), base, [quick, quicker]), (group_of(2), candidate(6), []))
    assert search.greedy() == [quicker, candidate(6)]


def test_nothing_is_changed_for_less_than_a_ten_thousandth():
    base, nearly = candidate(4), candidate(3.9999)
    search = search_of(TWO, (group_of(0), base, [nearly]))
    assert search.reverted(search.greedy()) == [base]


def test_choices_that_do_not_shorten_the_step_are_reverted():
    hidden = step_of(moves(1), kernel("long", 10))
    base, other = candidate(1), candidate(0.5, "priority")
    search = search_of(hidden, (group_of(0), base, [other]))
    found = search.reverted([other])
    assert search.seconds(found) <= search.base_seconds


def test_a_plan_that_loses_is_no_plan():
    base = [candidate(4), candidate(6)]
    search = search_of(TWO, (group_of(0), base[0], []), (group_of(2), base[1], []))
    assert search.reverted([candidate(9), candidate(9)]) == base


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(1, 9),
)
def test_a_search_finds_what_trying_everything_finds(durations, between):
    ops, options = [], []
    for number, taken in enumerate(durations):
        ops.append(moves(8, *((2 * number - 1,) if number else ())))
        ops.append(kernel("k", between, 2 * number))
        options.append((group_of(2 * number), candidate(8), [candidate(s) for s in taken]))
    search = search_of(step_of(*ops), *options)
    found = search.seconds(search.reverted(search.improved(search.greedy())))
    every = product(*([each[1], *each[2]] for each in options))
    assert found <= min(search.seconds(list(chosen)) for chosen in every) * 1.001


def test_candidates_are_priced_with_all_others_as_they_are():
    search = search_of(TWO, (group_of(0), candidate(4), []), (group_of(2), candidate(6), []))
    assert search.alone(0, candidate(1)) == pytest.approx(1 + 1 + 6 + 1)
    assert search.alone(1, candidate(1)) == pytest.approx(4 + 1 + 1 + 1)
