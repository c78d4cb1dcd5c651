"""Plans of recorded steps."""

import pytest

from tests.whatif.player import recorded
from tests.whatif.test_changes import STEP
from weft.hardware import platform
from weft.planner.plan import Limits, Plan
from weft.whatif.planned import plan_recorded


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("planned"), [STEP] * 4)[0]


@pytest.fixture(scope="module")
def made(trace):
    return plan_recorded(trace).plan


def test_a_plan_of_a_trace_is_never_slower_than_its_replay(made):
    assert made.planned <= made.baseline
    assert made.low <= made.planned <= made.high
    assert made.gain <= sum(choice.gain for choice in made.choices) + 1e-9
    assert Plan.from_json(made.to_json()) == made


def test_every_recorded_collective_is_in_one_choice(made):
    assert sum(len(choice.ops) for choice in made.choices) == 2
    assert all(choice.why and choice.alternatives for choice in made.choices)


def test_limits_hold_for_traces_too(trace):
    found = plan_recorded(trace, limits=Limits(engines=0)).plan
    told = {a.strategy.name: a.why for choice in found.choices for a in choice.alternatives}
    assert "copy engines" in told["dma"] or "engine" in told["dma"]
    codecs = [a for c in found.choices for a in c.alternatives if a.strategy.codec == "int8"]
    assert all("above the budget of 0" in each.why for each in codecs)


def test_a_trace_is_planned_on_another_machine(trace):
    found = plan_recorded(trace, on=platform("mi300x-8")).plan
    assert found.platform == "mi300x-8"
    assert found.planned <= found.baseline
