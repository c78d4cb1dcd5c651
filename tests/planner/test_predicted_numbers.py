"""Predictions of steps in whole seconds: where each second goes, and how far it may be off."""

from __future__ import annotations

from dataclasses import replace
from math import hypot, log

import pytest

from tests.planner.toy import GATHER, kernel, moves, quiet, step_of
from weft.cost.ranges import Deviation, range_term
from weft.errors import NoPlanError
from weft.planner.predict import check_memory, predict, predict_seconds
from weft.planner.prices import Prices
from weft.schedule import Cost
from weft.step import NO_HOST, Memory, Op, RankStep, StepGraph
from weft.step.step_graph import Unsupported

# Its collectives hold so few units that kernels bound by memory do not miss them.
_H100 = quiet("h100-8")
_FEW = replace(_H100.require_device().kernels, all_gather_units=8)
MACHINE = replace(_H100, device=replace(_H100.require_device(), kernels=_FEW))
ADD = Cost("elementwise", (), "fp32", nbytes=1)


def predicted(*ops, **more):
    return predict(step_of(*ops, **more), MACHINE, host=NO_HOST)


def parts(prediction):
    return {name: seconds for name, seconds in prediction.breakdown.items() if seconds > 1e-6}


class TestBreakdown:
    def test_computation_covers_communication(self):
        found = predicted(moves(5), kernel("a", 3), kernel("b", 1, 0))
        assert found.seconds == pytest.approx(6)
        assert parts(found) == pytest.approx({"compute": 4, "exposed": 2}, rel=1e-6)
        assert found.communication == pytest.approx(5)

    def test_a_rank_waits_for_a_later_one(self):
        quick = RankStep((0,), (kernel("a", 1), moves(2, 0)))
        slow = RankStep((1,), (kernel("a", 5), moves(2, 0)))
        found = predict(StepGraph("two", 2, (quick, slow)), MACHINE, host=NO_HOST)
        assert found.seconds == pytest.approx(7)
        assert found.slowest == 0  # of equals the first
        assert parts(found) == pytest.approx({"compute": 1, "waiting": 4, "exposed": 2}, rel=1e-6)

    def test_the_slowest_ranks_are_told(self):
        steps = (RankStep((0,), (kernel("a", 1),)), RankStep((1, 2), (kernel("a", 5),)))
        found = predict(StepGraph("three", 3, steps), MACHINE, host=NO_HOST)
        assert (found.slowest, found.seconds) == pytest.approx((1, 5))
        assert found.timeline.represents.tolist() == [1, 2]

    def test_a_device_waits_for_its_host(self):
        found = predicted(Op("think", "host", seconds=3.0), kernel("a", 4))
        assert parts(found) == pytest.approx({"compute": 4, "host": 3}, rel=1e-6)

    def test_families_are_told_the_largest_first(self):
        ops = (kernel("add", 2, cost=ADD), kernel("odd", 3), kernel("add", 2, cost=ADD), moves(9))
        found = predicted(*ops)
        assert list(found.families) == ["elementwise", "kernel"]
        assert found.families == pytest.approx({"elementwise": 4, "kernel": 3})


def test_a_step_that_begins_before_the_last_has_ended_takes_its_period():
    whole = predicted(moves(5), kernel("a", 3))
    assert whole.seconds == pytest.approx(5)
    assert parts(whole) == pytest.approx({"compute": 3, "exposed": 2})
    early = replace(whole, period=4.0)
    assert early.seconds == 4
    assert parts(early) == pytest.approx({"compute": 3, "exposed": 1})
    late = replace(whole, period=8.0)
    assert parts(late) == pytest.approx({"compute": 3, "exposed": 2, "idle": 3})


def test_what_the_next_step_hides_is_taken_from_the_host_first():
    whole = predicted(Op("think", "host", seconds=3.0), kernel("a", 4), moves(2, 1))
    assert parts(whole) == pytest.approx({"host": 3, "compute": 4, "exposed": 2}, rel=1e-6)
    assert parts(replace(whole, period=7.0)) == pytest.approx(
        {"host": 1, "compute": 4, "exposed": 2}, rel=1e-6
    )
    assert parts(replace(whole, period=5.0)) == pytest.approx(
        {"compute": 4, "exposed": 1}, rel=1e-6
    )


# Ranges.


def ends(seconds, *terms):
    """The range of a step with these deviations, whose software nobody named."""
    low, high = range_term("stacks", "none").joined(*terms).factors
    return pytest.approx((seconds * low, seconds, seconds * high))


RECORDED = range_term("elsewhere", "recorded")


def test_what_was_measured_may_take_as_long_another_time():
    found = predicted(kernel("a", 10))
    assert (found.low, found.seconds, found.high) == ends(10, RECORDED)


def test_what_no_model_knows_may_take_half_or_three_times_as_long():
    other = Cost("other", (), "fp32", nbytes=1 << 30)
    found = predicted(Op("odd", cost=other))
    took = Prices(MACHINE).kernel(other)
    assert (found.low, found.seconds, found.high) == ends(took, Deviation.between(0.5, 3))


def test_prices_are_at_the_ends_of_their_ranges():
    gemm = Cost("gemm", (4096, 4096, 4096), "bf16")
    ops = (Op("mm", cost=gemm), moves(None, 0), Op("mm", cost=gemm, after=(1,)))
    prices = Prices(MACHINE)
    single, moved = prices.kernel_price(gemm), prices.collective_price(GATHER, (0, 1))
    found = predicted(*ops)
    assert found.seconds == pytest.approx(2 * single.seconds + moved.seconds)
    away = {}
    for side in ("low", "high"):  # products of one shape err together, the collective by itself
        parts = (
            2 * abs(getattr(single, side) - single.seconds),
            abs(getattr(moved, side) - moved.seconds),
        )
        whole = 2 * getattr(single, side) + getattr(moved, side)
        away[side] = hypot(*parts) / sum(parts) * abs(log(whole / found.seconds))
    term = Deviation(away["low"], away["high"])
    assert (found.low, found.seconds, found.high) == ends(found.seconds, term)


def test_a_range_has_no_units_held_at_its_low_end_and_twice_as_many_at_its_high_end():
    cost = Cost("gemm", (8192, 8192, 8192), "bf16", seconds=10.0)
    machine = quiet("h100-8")  # 20 of 132 units
    found = predict(step_of(kernel("mm", None, cost=cost), moves(10)), machine, host=NO_HOST)
    unknown = range_term("stacks", "none").factors[0]
    assert 10 * unknown - 1e-9 < found.low < found.seconds
    assert found.seconds < 10 * 132 / (132 - 20) * 1.2
    assert found.high > found.seconds


def test_seconds_alone_are_the_same():
    ops = (kernel("mm", None, cost=Cost("gemm", (8, 8, 8), "bf16", seconds=10.0)), moves(4))
    step = step_of(*ops)
    assert predict_seconds(step, MACHINE, host=NO_HOST) == pytest.approx(predicted(*ops).seconds)


def test_the_slowest_ranks_decide_the_range_too():
    steps = (RankStep((0,), (kernel("a", 5),)), RankStep((1,), (kernel("a", 1),)))
    graph = StepGraph("two", 2, steps)
    found = predict(graph, MACHINE, host=NO_HOST)
    assert (found.low, found.seconds, found.high) == ends(5, RECORDED)
    assert predict_seconds(graph, MACHINE, host=NO_HOST) == pytest.approx(5)


# What is told.


def test_the_critical_path_runs_through_what_decided():
    found = predicted(moves(5), kernel("a", 3), kernel("b", 1, 0))
    told = dict(found.critical_path())
    assert told["all_gather"] == pytest.approx(5)
    assert told["b"] == pytest.approx(1)
    assert "a" not in told
    assert [name for name, _ in found.critical_path(1)] == ["all_gather"]


def test_a_row_says_what_is_missing_and_what_memory_is_for():
    memory = Memory(weights=1, gradients=2, optimizer=3, activations=4, other=5)
    missing = (Unsupported("odd", 2, 64, "nobody knows it"),)
    row = predicted(kernel("a", 1), memory=memory, unsupported=missing).row()
    names = ("weights", "gradients", "optimizer", "activations", "other", "total")
    assert row["memory"] == dict(zip(names, (1, 2, 3, 4, 5, 15), strict=True))
    told = {"name": "odd", "count": 2, "nbytes": 64, "why": "nobody knows it"}
    assert row["unsupported"] == [told]
    assert predicted(kernel("a", 1)).row()["memory"] is None
    assert row["breakdown"]["families"] == pytest.approx({"kernel": 1})


GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "hints"),
    [
        (Memory(weights=60 * GIB, optimizer=50 * GIB), ["among 3 times as many ranks"]),
        (Memory(activations=90 * GIB), ["a smaller batch"]),
        (Memory(weights=50 * GIB, activations=50 * GIB), ["among 2 times", "a smaller batch"]),
        (Memory(weights=30 * GIB, gradients=30 * GIB, other=40 * GIB), ["among 2 times"]),
        (Memory(weights=40 * GIB, activations=40 * GIB, other=1), []),  # half is no more than half
        (Memory(other=90 * GIB), []),
    ],
)
def test_what_does_not_fit_says_what_is_largest(memory, hints):
    eighty = replace(MACHINE.require_device(), memory_bytes=80 * GIB)
    machine = replace(MACHINE, device=eighty)
    with pytest.raises(NoPlanError) as wrong:
        check_memory("step", memory, machine)
    searched = "--search layout" in wrong.value.hint
    assert searched == any("times" in hint for hint in hints)
    assert wrong.value.hint.count(";") == len(hints) + searched
    assert all(hint in wrong.value.hint for hint in (*hints, "--anyway"))


def test_what_fills_the_memory_fits():
    size = MACHINE.require_device().memory_bytes
    check_memory("step", Memory(weights=size), MACHINE)
    with pytest.raises(NoPlanError):
        check_memory("step", Memory(weights=size + 1), MACHINE)
