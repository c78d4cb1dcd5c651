"""Choices in words: what decided, what was not chosen, and why."""

from __future__ import annotations

import re

import pytest

from tests.planner.toy import candidate, evaluator_of, group_of, kernel, moves, step_of
from weft.planner.candidates import infeasible
from weft.planner.explaining import Explainer, name_of
from weft.planner.search import GroupOptions, Search
from weft.schedule.strategy import Strategy
from weft.step import Collective

LATER = infeasible("dma", "there are no engines")
EXPOSED = step_of(kernel("producer", 2), moves(10, 0), kernel("last", 1, 1))
HIDDEN = step_of(moves(4), kernel("long", 10))


def explained(step, member, base, chosen, *others, barred=(), **more):
    evaluator = evaluator_of(step)
    options = GroupOptions(group_of(member, **more), base, (chosen, *others), barred)
    search = Search([options], evaluator)
    return Explainer(search, evaluator, [chosen]).choice(0, 0.25)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (group_of(), "all_gather 1 MiB"),
        (group_of(phase="forward"), "all_gather 1 MiB, forward"),
        (group_of(overlapped="mm", produced_by="up"), "all_gather 1 MiB, overlapped with mm"),
        (group_of(produced_by="up"), "all_gather 1 MiB, after up"),
        (group_of(what=Collective("send", 8, group="tp")), "send 8 B of tp"),
    ],
)
def test_a_group_is_named_by_its_collective_and_what_overlaps_it(group, name):
    assert name_of(group) == name


def test_what_is_hidden_already_is_kept():
    found = explained(HIDDEN, 0, candidate(4), candidate(4), candidate(1), hidden=0.96)
    assert "already hidden" in found.why


def test_a_faster_alternative_that_gains_nothing_is_not_taken():
    found = explained(HIDDEN, 0, candidate(4), candidate(4), candidate(1), hidden=0.5)
    assert "does not wait for it" in found.why


def test_what_nothing_beats_is_kept():
    found = explained(EXPOSED, 1, candidate(10), candidate(10), candidate(12))
    assert "nothing that can be executed here is faster" in found.why


def test_a_change_says_what_it_takes():
    found = explained(EXPOSED, 1, candidate(10), candidate(5, "dma", why="by engines"))
    assert found.why == (
        "by engines; 5 s instead of 10 s; saves 5 s of waiting for collectives and the host"
    )
    assert (found.seconds, found.low, found.high) == pytest.approx((5, 4.5, 5.5))
    assert found.gain == 0.25


def test_a_change_says_what_it_does_to_kernels():
    slow = candidate(4, units=64)
    found = explained(HIDDEN, 0, slow, candidate(4, "partition", units=4))
    assert "kernels next to it" in found.why
    assert re.search(r"saves .* s of kernels$", found.why)


def test_alternatives_come_with_the_step_they_make_and_what_is_infeasible_last():
    chosen = candidate(5, "dma")
    others = candidate(8, "serial"), candidate(7, "priority")
    found = explained(EXPOSED, 1, candidate(10), chosen, *others, barred=(LATER,)).alternatives
    assert [each.strategy.name for each in found] == ["priority", "serial", "concurrent", "dma"]
    assert [each.seconds for each in found[:3]] == pytest.approx([10, 11, 13])
    assert found[0].why == "the step is 2 s longer"
    assert found[-1] is LATER


def test_of_each_strategy_the_fastest_is_named_for_each_backend():
    base = candidate(10, Strategy("concurrent", "gloo"))
    weft = (candidate(s, Strategy("concurrent", "weft", str(s))) for s in (8, 7))
    found = explained(EXPOSED, 1, base, candidate(5, "dma"), *weft).alternatives
    assert [each.strategy for each in found] == [
        Strategy("concurrent", "weft", "7"),
        Strategy("concurrent", "gloo"),
    ]
