"""Random steps and the best of all choices for them."""

import pytest

from weft.bench import plan as bench
from weft.bench.random_steps import MOST, by_plan, exhaustive, published, random_steps
from weft.c3 import Pricer
from weft.hardware import platform
from weft.planner.planning import plan
from weft.workload import NO_HOST


@pytest.fixture(scope="module")
def pricer():
    return Pricer(platform("mi300x-8"))


def test_steps_of_a_seed_are_the_same_and_those_of_another_differ(pricer):
    one, same, other = (
        [step.scenarios for step in random_steps(5, pricer.platform, seed=seed)]
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other
    assert all(1 <= len(scenarios) <= MOST for scenarios in one)


@pytest.mark.parametrize("mode", ["search", "heuristic"])
def test_no_plan_is_better_than_the_best_of_all_choices(pricer, mode):
    for step in random_steps(4, pricer.platform, seed=3):
        best = exhaustive(step, pricer)
        made = plan(step.workload, pricer.platform, mode=mode, host=NO_HOST)
        assert len(made.choices) == len(step.scenarios)
        assert best <= by_plan(step, made, pricer) * (1 + 1e-9)
        assert best <= published(step, pricer) * (1 + 1e-9)


def test_a_search_finds_the_best_pair_that_the_planned_step_ends_with(pricer):
    step = next(random_steps(1, pricer.platform, seed=4))
    made = plan(step.workload, pricer.platform, host=NO_HOST)
    simulated = by_plan(step, made, pricer)
    assert simulated == pytest.approx(sum(choice.seconds for choice in made.choices), rel=1e-6)
    assert simulated <= exhaustive(step, pricer) * bench.NEAR


def test_a_row_says_what_must_be_reached_and_whether_it_was():
    row = bench._regret_row("search", 1, [1.0, 1.01, 1.5], [0.1, 0.1, 0.1])
    assert row.more["within_2_percent"] == pytest.approx(2 / 3)
    assert (row.more["must"], row.more["met"]) == ("95%", False)
