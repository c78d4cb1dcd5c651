"""Benchmarks of lookups and of their placement: what is drawn, run and judged."""

import numpy as np
import pytest

from benchmarks.rows import Options
from benchmarks.sharding_here import (
    RANKS,
    SHARDERS,
    drawn_tables,
    judged,
    placements,
    summed_up,
)
from weft.hardware import Lookups, platform
from weft.models.tables import Shard, Table
from weft.planner.sharding import Sharder
from weft.runtime.spawn import spawn

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from benchmarks import embedding  # noqa: E402
from benchmarks.torch_table_placement import Task, _first_rows, _inside, measure_task  # noqa: E402

CPU = platform("cpu", num_ranks=RANKS)


def plan_of(seconds, name="plan"):
    plan = Sharder([Table("t", 10, 4)], CPU, 4).plans()[0]
    from dataclasses import replace

    return replace(plan, seconds=seconds, name=name)


def test_placements_differ_and_hold_every_table():
    tables, batch = drawn_tables(3)
    found = placements(Sharder(tables, CPU, batch), 3)
    assert 3 <= len(found) <= len(SHARDERS) + 3
    for plan in found:
        held = sum(shard.rows * shard.dim for shard in plan.shards)
        assert held == sum(table.rows * table.dim for table in tables)
    assert drawn_tables(3) == (tables, batch)
    assert drawn_tables(4)[0] != tables


@pytest.mark.parametrize(("chosen", "met"), [(0.0105, True), (0.0115, False)])
def test_what_was_chosen_may_take_a_tenth_longer_than_the_best(chosen, met):
    task = Task((Table("t", 10, 4),), 4, ((), ()))
    plans = [plan_of(1.0, "chosen"), plan_of(2.0, "other")]
    row = judged(7, task, plans, [[chosen] * 3, [0.010] * 3])
    assert (row.more["chosen"], row.more["best"], row.more["met"]) == ("chosen", "other", met)
    assert row.more["over_best"] == pytest.approx(chosen / 0.010)


def test_nine_of_ten_are_enough():
    task = Task((Table("t", 10, 4),), 4, ((), ()))
    plans = [plan_of(1.0), plan_of(2.0)]
    good, bad = (judged(1, task, plans, [[each], [1.0]]) for each in (1.0, 2.0))
    assert summed_up([good] * 9 + [bad]).more["met"]
    assert not summed_up([good] * 8 + [bad] * 2).more["met"]


@pytest.mark.multiprocess
def test_steps_of_every_placement_are_carried_out():
    tables = (Table("a", 60, 8, 2), Table("b", 40, 4, 3, 1.05))
    whole = (Shard(0, 0, 60, 8), Shard(1, 1, 40, 4))
    cut = (Shard(0, 0, 30, 8, by_rows=True), Shard(0, 1, 30, 8, by_rows=True), Shard(1, 0, 40, 4))
    alone = (Shard(0, 1, 60, 8), Shard(1, 1, 40, 4))
    task = Task(tables, 8, (whole, cut, alone))
    first, second = spawn(measure_task, RANKS, task, 2, timeout=30.0)
    assert [len(each) for each in first] == [len(each) for each in second] == [2, 2, 2]
    assert min(min(each) for each in first) > 0


def test_parts_of_rows_keep_their_bags():
    shards = [Shard(0, 0, 3, 4, by_rows=True), Shard(1, 0, 9, 4), Shard(0, 1, 5, 4, by_rows=True)]
    assert _first_rows(shards) == [0, 0, 3]
    indices, offsets = torch.tensor([0, 4, 7, 3, 1]), torch.tensor([0, 2, 5])
    kept, borders = _inside((indices, offsets), first=3, rows=5)
    assert kept.tolist() == [1, 4, 0]
    assert borders.tolist() == [0, 1, 3]


def test_cases_of_lookups_are_unseen_and_the_same_each_time():
    from weft.calibration.torch_lookup_rates import cases

    drawn = embedding.drawn_cases(1)
    assert drawn == embedding.drawn_cases(1)
    assert drawn != embedding.drawn_cases(2)
    assert not set(drawn) & set(cases())


def test_lookups_are_compared_with_their_price_and_with_an_even_one():
    given = embedding.drawn_cases(1)
    found = dict.fromkeys(embedding.KINDS, Lookups(start=1e-5, lookup=1e-9, memory_row=1e-8))
    from weft.calibration.torch_lookup_rates import columns_of
    from weft.cost.lookups import core_seconds

    exact = core_seconds(columns_of(given), 4, found["torch"], backward=False)
    times = np.stack([exact, exact * 1.02, exact * 0.98], axis=1)
    *rows, whole = embedding.compared("torch", given, times, found)
    assert len(rows) == len(given)
    assert max(abs(row.more["error"]) for row in rows) < 1e-9
    assert whole.more["met"] is True
    assert whole.more["uniform_error"] > 10 * whole.more["error"]
    assert whole.more["floor"] == pytest.approx(0.04 / 3)
    assert embedding.count_rows(Options(seeds=(1,))) == 4 * (len(given) + 1)
