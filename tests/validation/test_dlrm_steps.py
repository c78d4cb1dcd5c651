"""Steps of DLRM that others measured, and how HugeCTR places tables."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from validation.dlrm_steps import example_rows, hugectr_shards, mlperf_rows
from validation.splits import STEPS_DLRM, STEPS_DLRM_NVIDIA
from weft.models.named import DLRMS

MODEL = replace(DLRMS["dlrm-dcnv2"], replicated=7812)


@pytest.mark.parametrize("places", [4, 8, 64])
def test_every_row_is_placed_and_every_place_has_room(places):
    shards = hugectr_shards(MODEL, places, 7 / 4)
    rows, used = defaultdict[int, int](int), defaultdict[int, float](float)
    for shard in shards:
        rows[shard.table] += shard.rows
        used[shard.rank] += 8 * shard.rows * shard.dim
    assert set(rows) == set(MODEL.sharded)
    assert all(count == pytest.approx(MODEL.tables[n].rows, rel=1e-3) for n, count in rows.items())
    assert max(used.values()) <= 60e9


def test_parts_are_cut_until_the_slowest_place_is_not_shortened():
    by_rank = defaultdict[int, float](float)
    for shard in hugectr_shards(MODEL, 8, 7 / 4):
        table = MODEL.tables[shard.table]
        by_rank[shard.rank] += table.pooling * shard.rows / table.rows
    assert max(by_rank.values()) < 1.3 * sum(by_rank.values()) / 8


@pytest.mark.data
@pytest.mark.slow
def test_steps_of_dlrm_are_within_the_limits(data):
    for rows, split in (
        (list(mlperf_rows(data)), STEPS_DLRM),
        (list(example_rows(data)), STEPS_DLRM_NVIDIA),
    ):
        assert {row.part for row in rows} == {*split.fitted, *split.held_out}
        unseen = sorted(abs(row.error) for row in rows if row.part in split.held_out)
        assert unseen[len(unseen) // 2] < 0.12
        assert unseen[-1] < 0.25
