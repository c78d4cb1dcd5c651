"""The seconds of a whole step, in whole seconds, with collectives carried out by candidates."""

from __future__ import annotations

import pytest

from tests.planner.toy import candidate, evaluator_of, group_of, kernel, moves, step_of
from weft.step import Collective, RankStep, StepGraph

# A collective of 4 s while a kernel of 10 s runs; another kernel waits for both.
OVERLAPPED = step_of(kernel("long", 10), moves(4), kernel("last", 1, 1))
# A kernel, a collective of what it produced, and a kernel that waits for that.
CHAIN = step_of(kernel("producer", 8), moves(10, 0), kernel("last", 1, 1))


def seconds(step, *chosen):
    return evaluator_of(step).seconds(chosen)


def test_a_chain_takes_what_its_ops_take():
    assert seconds(CHAIN) == pytest.approx(19)


def test_the_slowest_ranks_decide():
    steps = (RankStep((0,), (kernel("short", 1),)), RankStep((1,), (kernel("long", 5),)))
    assert evaluator_of(StepGraph("two", 2, steps)).seconds(()) == pytest.approx(5)


def test_a_slower_candidate_is_hidden_no_more():
    quick, slow = (seconds(OVERLAPPED, (group_of(1), candidate(s))) for s in (4, 12))
    assert quick < 12 < slow
    assert slow == pytest.approx(12 + 1, rel=0.01)


def test_next_to_an_exclusive_candidate_nothing_runs():
    found = seconds(OVERLAPPED, (group_of(1), candidate(4, exclusive=True)))
    assert found == pytest.approx(10 + 4 + 1)


def test_fewer_units_leave_more_to_kernels():
    few, many = (seconds(OVERLAPPED, (group_of(1), candidate(4, units=units))) for units in (4, 64))
    assert 11 <= few < many


def test_slices_leave_inside_their_producer():
    group = group_of(1, producers=((0, 0),), producer_seconds=8.0)
    # Of four slices three leave meanwhile: 8 s less a quarter are hidden.
    assert seconds(CHAIN, (group, candidate(10, slices=4))) == pytest.approx(8 + 4 + 1)
    slower = candidate(10, slices=4, producer=1.5)
    assert seconds(CHAIN, (group, slower)) == pytest.approx(12 + 4 + 1)
    short = candidate(4, slices=4)  # no more is hidden than there is
    assert seconds(CHAIN, (group, short)) == pytest.approx(8 + 1 + 1)


def test_without_producers_there_are_no_slices():
    group = group_of(1, producer_seconds=8.0)
    assert seconds(CHAIN, (group, candidate(10, slices=4))) == pytest.approx(19)


def test_replaced_ops_take_no_time():
    assert seconds(CHAIN, (group_of(1), candidate(10, replaced=((0, 0),)))) == pytest.approx(11)


def test_all_members_of_a_group_change():
    twice = step_of(moves(4), kernel("a", 1, 0), moves(4, 1), kernel("b", 1, 2))
    assert seconds(twice, (group_of(0, 2), candidate(2))) == pytest.approx(6)
    found = seconds(twice, (group_of(0), candidate(2)), (group_of(2), candidate(1)))
    assert found == pytest.approx(5)


def test_overlap_is_how_long_each_kernel_ran_next_to_each_collective():
    evaluator = evaluator_of(step_of(moves(8), kernel("a", 2), kernel("b", 3)))
    overlap = evaluator.overlap(evaluator.run())
    assert set(overlap.kernels[0, 0]) == {1, 2}
    assert overlap.kernels[0, 0][2] > overlap.kernels[0, 0][1] >= 2
    assert overlap.share[0, 0] == pytest.approx(sum(overlap.kernels[0, 0].values()) / 8, rel=0.01)


def test_kernels_are_slower_next_to_a_collective_that_holds_more_units():
    evaluator, group = evaluator_of(OVERLAPPED), group_of(1)
    few, many = (
        evaluator.slowdown(evaluator.run([(group, candidate(4, units=units))]), group)
        for units in (2, 64)
    )
    assert 1.0 <= few < many


def test_equal_collectives_behind_two_kernels_are_carried_out_in_two_ways():
    what = Collective("all_gather", 1 << 42)  # as fast as its units can at the most
    sent = [moves(8, after, what=what) for after in (0, 2)]
    step = step_of(kernel("a", 4), sent[0], kernel("b", 4, 1), sent[1], kernel("end", 1, 3))
    quick = candidate(2)
    first, second = (group_of(1, what=what), quick), (group_of(3, what=what), quick)
    base = (group_of(1, what=what), candidate(8)), (group_of(3, what=what), candidate(8))
    assert seconds(step, first, base[1]) == pytest.approx(4 + 2 + 4 + 8 + 1)
    assert seconds(step, base[0], second) == pytest.approx(4 + 8 + 4 + 2 + 1)
    assert seconds(step, first, second) == pytest.approx(4 + 2 + 4 + 2 + 1)
