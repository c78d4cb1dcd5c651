"""Plans of small steps: gains that add up, buckets, limits, and ops by their own numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.planner.toy import GATHER, MACHINE, kernel, moves, quiet, step_of
from weft.cost.ranges import range_term
from weft.errors import NoPlanError
from weft.hardware import platform
from weft.planner.plan import Alternative, Choice, Limits, Plan, fingerprint
from weft.planner.planning import _room, plan
from weft.schedule import Group
from weft.schedule.strategy import Strategy
from weft.step import NO_HOST, Collective, Memory, Op, StepGraph

MIB = 1 << 20
SLOW = quiet("l40s-8-nop2p")  # slow links


def choice(**more):
    told = Alternative(Strategy("dma", engines=7), None, "there are none")
    made = Choice(
        "pair", 3, GATHER, Strategy("serial", units=8), 2.0, 1.0, 3.0, 0.25, "why", (told,)
    )
    return replace(made, **more)


def planned(baseline, seconds, *choices):
    return Plan("step", "here", 2, choices, baseline, seconds, 0.0, 9.0, "a-b")


# A plan as it is read.


def test_gain_and_speed_say_the_same():
    made = planned(10.0, 8.0)
    assert (made.gain, made.speedup) == (pytest.approx(0.2), pytest.approx(1.25))
    nothing = planned(0.0, 0.0)
    assert (nothing.gain, nothing.speedup) == (0, 1)


def test_totals_have_the_keys_of_the_verb():
    assert planned(10.0, 8.0).totals() == {
        "workload": "step",
        "baseline": 10.0,
        "planned": 8.0,
        "low": 0.0,
        "high": 9.0,
        "gain": pytest.approx(0.2),
        "mode": "heuristic",
        "ranks": 2,
        "notes": [],
        "basis": "predicted",
    }


def test_a_row_counts_how_often_a_pair_comes():
    assert choice().as_row()["times"] == 1
    assert choice(ops=(3,)).as_row()["times"] == 1
    row = choice(ops=(3, 5, 8)).as_row()
    assert row["times"] == 3
    assert row["alternatives"] == [
        {"strategy": "dma", "settings": {"engines": 7}, "seconds": None, "why": "there are none"}
    ]


def test_a_fingerprint_is_two_words_of_sixteen_digits():
    # Files that were written with others would be refused.
    assert re.fullmatch("[0-9a-f]{16}-[0-9a-f]{16}", fingerprint(step_of(), MACHINE))


# A plan as it is made.


def chain(*sizes, kind="all_gather"):
    """Collectives that kernels wait for, one after the other."""
    ops: list[Op] = []
    for nbytes in sizes:
        what = Collective(kind, nbytes, "fp32")
        ops.append(moves(None, *([len(ops) - 1] if ops else []), what=what))
        ops.append(kernel("work", 1e-3, len(ops) - 1))
    return step_of(*ops, ranks=8)


def test_gains_of_pairs_that_do_not_touch_each_other_add_up():
    step = chain(64 * MIB, 256 * MIB)
    found = plan(step, SLOW, limits=Limits(error=0.1, hypothetical=True), host=NO_HOST)
    assert len(found.choices) == 2
    assert all(each.gain > 0 for each in found.choices)
    assert sum(each.gain for each in found.choices) == pytest.approx(found.gain, rel=1e-6)
    first, second = found.choices
    assert second.gain == pytest.approx(4 * first.gain, rel=0.05)  # four times the bytes
    assert [each.ops for each in found.choices] == [(0,), (2,)]
    assert [each.op for each in found.choices] == [0, 2]


def test_a_gain_counts_one_change_and_leaves_all_else_as_it_is():
    # The second collective slows what overlaps it, whatever the first one does.
    first = chain(64 * MIB).steps[0].ops
    behind = Collective("all_reduce", 16 * MIB, "fp32")
    step = step_of(*first, moves(None, 1, what=behind), kernel("long", 1.0, 1), ranks=8)
    found = plan(step, SLOW, limits=Limits(error=0.1, hypothetical=True), host=NO_HOST)
    assert sum(each.gain for each in found.choices) == pytest.approx(found.gain, rel=1e-3)


def test_nothing_to_gain_is_no_gain():
    found = plan(step_of(kernel("a", 1e-3), ranks=8), SLOW, host=NO_HOST)
    assert (found.choices, found.gain) == ((), 0)
    assert found.baseline == found.planned == pytest.approx(1e-3)


def test_the_range_of_a_plan_is_that_of_its_step():
    found = plan(step_of(kernel("a", 1e-3), ranks=8), SLOW, host=NO_HOST)
    term = range_term("elsewhere", "recorded").joined(range_term("stacks", "none"))
    assert (found.low, found.high) == pytest.approx(tuple(1e-3 * each for each in term.factors))


def test_larger_buckets_are_a_setting_with_a_gain():
    # Sixteen reductions in a row of which each takes little but its latency.
    what = Collective("all_reduce", 64 << 10, "fp32")
    ops = [moves(None, what=what, phase="backward") for _ in range(16)]
    step = step_of(*ops, ranks=8)
    found = plan(step, SLOW, limits=Limits(engines=0), host=NO_HOST)
    (made,) = found.choices
    assert made.strategy.bucket == 8 * (64 << 10)
    assert made.ops == tuple(range(16))
    assert made.op == 0
    assert made.why.startswith("buckets of 512 KiB save ")
    assert made.gain == pytest.approx(found.gain, rel=1e-6)
    tried = [each for each in made.alternatives if each.strategy.bucket]
    assert [each.strategy.bucket for each in tried] == [128 << 10, 256 << 10]
    assert all(each.why.endswith(" longer") for each in tried)


def test_buckets_that_gain_less_than_half_a_percent_stay():
    what = Collective("all_reduce", 1024 * MIB, "fp32")
    ops = [moves(None, what=what, phase="backward") for _ in range(2)]
    found = plan(step_of(*ops, ranks=8), SLOW, limits=Limits(engines=0), host=NO_HOST)
    assert "bucket" not in found.choices[0].strategy.settings
    told = [each for each in found.choices[0].alternatives if each.strategy.bucket]
    assert {each.strategy.bucket for each in told} == {2048 * MIB}


def test_other_collectives_keep_their_numbers_next_to_larger_buckets():
    what = Collective("all_reduce", 64 << 10, "fp32")
    ops = [moves(None, what=what, phase="backward") for _ in range(16)]
    gather = moves(None, what=Collective("all_gather", 64 << 10, "fp32"), phase="backward")
    found = plan(step_of(*ops, gather, ranks=8), SLOW, limits=Limits(engines=0), host=NO_HOST)
    by_kind = {each.collective.kind: each for each in found.choices}
    assert "bucket" in by_kind["all_reduce"].strategy.settings
    assert "bucket" not in by_kind["all_gather"].strategy.settings
    assert by_kind["all_gather"].ops == (16,)


def test_reductions_of_other_groups_are_in_no_buckets():
    what = Collective("all_reduce", 64 << 10, "fp32")
    ops = [moves(None, what=what, phase="backward") for _ in range(16)]
    inside = moves(None, what=replace(what, group="half", nbytes=MIB), phase="backward")
    step = step_of(*ops, inside, ranks=8, groups={"half": Group(4)})
    found = plan(step, SLOW, limits=Limits(engines=0), host=NO_HOST)
    by_group = {each.collective.group: each for each in found.choices}
    assert by_group["world"].strategy.bucket == 8 * (64 << 10)
    assert by_group["half"].strategy.bucket is None
    assert not [each for each in by_group["half"].alternatives if each.strategy.bucket]
    assert by_group["half"].gain == 0


def test_ops_have_the_numbers_of_the_workload_where_more_is_priced():
    what = Collective("all_reduce", MIB, "fp32")
    ops = (kernel("a", 1e-3), moves(None, 0, what=what, phase="backward"))
    step = step_of(*ops, *(replace(op, after=()) for op in ops), source="generated: toy")
    found = plan(step, platform("cpu"))  # DDP copies its buckets on cores
    assert [each.ops for each in found.choices] == [(1, 3)]


def test_a_codec_needs_room_next_to_what_it_encodes():
    step = replace(chain(64 * MIB), memory=Memory(weights=MIB))
    limits = Limits(error=0.1, codecs=("int8",), memory=65 * MIB, hypothetical=True)
    found = plan(step, SLOW, limits=limits, host=NO_HOST)
    assert found.choices[0].strategy.settings == {"codec": "int8"}
    tight = plan(step, SLOW, limits=replace(limits, memory=65 * MIB - 1), host=NO_HOST)
    told = [
        each.why for each in tight.choices[0].alternatives if each.strategy.name == "compressed"
    ]
    assert told == ["needs 64 MiB more, 64 MiB are left"]


@pytest.mark.parametrize(
    ("memory", "limit", "room"),
    [(None, None, 100), (30, None, 70), (30, 50, 20), (50, 50, 0), (None, 50, 50)],
)
def test_a_plan_may_use_what_the_step_leaves(memory, limit, room):
    machine = replace(MACHINE, device=replace(MACHINE.require_device(), memory_bytes=100))
    step = step_of(memory=None if memory is None else Memory(weights=memory))
    assert _room(step, machine, Limits(memory=limit)) == room


def test_a_step_that_needs_more_than_a_plan_may_use_is_refused():
    step: StepGraph = step_of(memory=Memory(weights=51))
    with pytest.raises(NoPlanError, match="toy needs 51 B a rank; a plan may use 50 B"):
        _room(step, MACHINE, Limits(memory=50))


def test_no_error_and_no_engines_are_limits():
    assert _room(step_of(), MACHINE, Limits(error=0.0, engines=0)) > 0


def test_a_single_bucket_is_split_where_that_hides_it():
    # Kernels fill one large bucket: its first half could be reduced while the second is computed.
    what = Collective("all_reduce", 1024 * MIB, "fp32")
    kernels = [kernel(f"gradient {n}", 2e-3, phase="backward") for n in range(8)]
    step = step_of(*kernels, moves(None, 7, what=what, phase="backward"), ranks=8)
    found = plan(step, SLOW, limits=Limits(engines=0), host=NO_HOST)
    (made,) = found.choices
    assert made.strategy.bucket in (512 * MIB, 256 * MIB)
    assert made.ops == (8,)
    assert found.planned < found.baseline
