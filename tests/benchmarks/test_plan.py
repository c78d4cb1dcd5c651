"""Random steps and the best of all choices for them."""

import pytest

from benchmarks import plan as bench
from benchmarks.random_steps import MOST, exhaustive, random_steps
from weft.hardware import platform
from weft.planner.planning import plan
from weft.step import NO_HOST

MI300X = platform("mi300x-8")


def test_steps_of_a_seed_are_the_same_and_those_of_another_differ():
    one, same, other = (
        [step.scenarios for step in random_steps(5, MI300X, seed=seed)] for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other
    assert all(1 <= len(scenarios) <= MOST for scenarios in one)


@pytest.mark.parametrize("mode", ["search", "heuristic"])
def test_a_plan_is_no_better_than_the_best_of_all_combinations_and_nearly_as_good(mode):
    for step in random_steps(4, MI300X, seed=3):
        best = exhaustive(step, MI300X)
        made = plan(step.graph, MI300X, mode=mode, host=NO_HOST)
        assert len(made.choices) <= len(step.scenarios)  # equal collectives are one group
        assert best * (1 - 1e-9) <= made.planned <= best * bench.NEAR


def test_a_row_says_what_must_be_reached_and_whether_it_was():
    row = bench._regret_row("search", 1, [1.0, 1.01, 1.5], [0.1, 0.1, 0.1])
    assert row.more["within_2_percent"] == pytest.approx(2 / 3)
    assert (row.more["must"], row.more["met"]) == ("99%", False)
