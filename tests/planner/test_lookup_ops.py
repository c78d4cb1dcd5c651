"""What a fused embedding takes the place of, in steps as they are captured and as they are made."""

from dataclasses import replace

import pytest

from weft.hardware import Lookups as Rates
from weft.hardware import Platform, platform
from weft.planner.lookup_ops import TableLookups, lookups_at
from weft.planner.plan import Plan
from weft.planner.planning import plan
from weft.schedule.ir import Cost
from weft.step.step_graph import Collective, Op, RankStep, StepGraph

SHAPE = (256, 10_000, 32, 8.0)
EXCHANGE = Op(
    "c10d.alltoall_base_",
    "collective",
    "comm world",
    collective=Collective("all_to_all", 1 << 20, "fp32"),
)


def kernel(name, family, *shape, phase="forward", seconds=None):
    cost = Cost(family, shape, "fp32", 0.0, 1 << 20)
    return Op(name, cost=cost, phase=phase, seconds=seconds)


def captured():
    """A step as torch has it: bags, joined, exchanged, taken apart; and the way back."""
    bag = kernel("aten._embedding_bag", "embedding", *SHAPE, seconds=2e-3)
    cat = kernel("aten.cat", "concat", seconds=1e-4)
    back = [
        kernel("aten.clone", "elementwise", phase="backward", seconds=1e-4),
        replace(cat, phase="backward"),
        replace(EXCHANGE, after=(8,), phase="backward"),
        kernel("aten._embedding_bag_backward", "other", phase="backward", seconds=1e-3),
        kernel("aten.add_", "elementwise", phase="backward", seconds=4e-3),
        kernel("aten.mm", "gemm", 8, 8, 8, phase="backward", seconds=1e-4),
    ]
    dense = [kernel("aten.relu", "elementwise", seconds=1e-4)] * 2
    forth = [dense[0], bag, bag, cat, replace(EXCHANGE, after=(3,), phase="forward"), cat]
    return (*forth, dense[1], *back)


def test_lookups_and_what_joins_them_belong_to_an_exchange():
    ops = captured()
    forth, back = TableLookups.around(ops, 4), TableLookups.around(ops, 9)
    assert forth is not None
    assert back is not None
    assert sorted(forth.replaced) == [1, 2, 3, 5]
    assert sorted(back.replaced) == [7, 8, 10, 11]
    assert len(forth.tables) == len(back.tables) == 2


@pytest.mark.parametrize("number", [0, 6])
def test_other_ops_have_no_lookups(number):
    assert TableLookups.around(captured(), number) is None


def test_an_exchange_without_tables_next_to_it_has_none():
    relu = kernel("aten.relu", "elementwise")
    assert TableLookups.around((relu, EXCHANGE, relu), 1) is None


def test_tables_that_something_else_stands_between_are_not_next_to_it():
    bag, relu = kernel("bag", "embedding", *SHAPE), kernel("aten.relu", "elementwise")
    assert TableLookups.around((bag, relu, kernel("aten.cat", "concat"), EXCHANGE), 3) is None


def test_only_what_stands_before_is_walked_back_over():
    bag = kernel("bag", "embedding", *SHAPE)
    found = TableLookups.around((bag, EXCHANGE, bag), 1)
    assert found is not None
    assert found.replaced == (0,)
    assert len(found.tables) == 2


def test_a_fused_lookup_takes_what_was_measured_of_its_phase():
    device = measured(1e-6).require_device()
    rates = {"weft": Rates(lookup=1e-6), "weft_backward": Rates(lookup=5e-6)}
    device = replace(device, lookups=rates)
    found = TableLookups((), (kernel("bag", "embedding", *SHAPE),) * 2)
    forth, back = found.seconds(device, "forward"), found.seconds(device, "backward")
    assert forth is not None
    assert back is not None
    assert forth.seconds == pytest.approx(2 * 256 * 8 * 1e-6)
    assert back.seconds == pytest.approx(2 * 256 * 8 * 5e-6)
    assert forth.low <= forth.seconds <= forth.high
    assert found.seconds(replace(device, lookups={}), "forward") is None


def test_ranks_must_all_have_lookups():
    ops = captured()
    bare = (kernel("aten.relu", "elementwise"), *ops[4:])
    graph = StepGraph("w", 2, (RankStep((0,), ops), RankStep((1,), bare)))
    assert lookups_at(graph, [(0, 4), (1, 1)]) == ()
    assert [sorted(each.replaced) for each in lookups_at(graph, [(0, 4)])] == [[1, 2, 3, 5]]


def measured(lookup: float) -> Platform:
    """The platform cpu with lookups of weft that were measured: so many seconds each."""
    known = platform("cpu", num_ranks=2)
    rates = {name: Rates(lookup=lookup) for name in ("weft", "weft_backward")}
    return replace(known, device=replace(known.require_device(), lookups=rates))


def planned(lookup: float) -> tuple[Plan, list[str]]:
    graph = StepGraph("w", 2, (RankStep((0, 1), captured()),))
    found = plan(graph, measured(lookup))
    return found, [choice.strategy.name for choice in found.choices]


def test_a_fused_embedding_that_is_faster_is_planned_and_saves_what_it_replaces():
    found, strategies = planned(1e-7)  # 0.2 ms a table instead of 2 ms
    assert strategies == ["fused", "fused"]
    # TableLookups, gradients and joins took 9.4 ms of the step, and Gloo's exchanges some more.
    assert found.baseline - found.planned > 9.4e-3 - 4 * 256 * 8 * 1e-7


def test_one_that_is_slower_is_not():
    _, strategies = planned(1e-5)
    assert "fused" not in strategies
