"""Tables on ranks: every part is placed once, inside its memory, and the choice is the best."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import NoPlanError, UsageError
from weft.hardware import platform
from weft.models.tables import Table
from weft.planner.sharding import Sharder, explain

H100 = platform("h100-8")

some_tables = st.lists(
    st.builds(
        Table,
        name=st.just("t"),
        rows=st.integers(10, 10**8),
        dim=st.sampled_from((16, 64, 256)),
        pooling=st.sampled_from((1.0, 20.0)),
        zipf=st.sampled_from((0.0, 1.05)),
    ),
    min_size=1,
    max_size=12,
)


@given(tables=some_tables)
@settings(max_examples=25, deadline=None)
def test_every_table_is_whole_and_every_rank_has_room(tables):
    sharder = Sharder(tables, H100, 4096)
    for plan in sharder.plans():
        held = [0] * len(tables)
        for shard in plan.shards:
            held[shard.table] += shard.rows * shard.dim
            assert 0 <= shard.rank < 8
        assert held == [table.rows * table.dim for table in tables]
        row = 2 * 4 * 256 * len(tables)  # what does not divide by the ranks
        assert plan.bytes_per_rank <= sharder.room + row


@given(tables=some_tables)
@settings(max_examples=10, deadline=None)
def test_the_search_is_no_worse_than_any_sharder(tables):
    plans = Sharder(tables, H100, 4096).plans()
    search = next(plan for plan in plans if plan.name == "search")
    assert search.seconds <= min(plan.seconds for plan in plans) * (1 + 1e-9)


def test_one_heavy_table_is_cut():
    heavy = Table("heavy", 10**6, 256, 100.0)
    light = [Table(f"light{n}", 1000, 16) for n in range(7)]
    best = Sharder([heavy, *light], H100, 16384).plans()[0]
    assert len({shard.rank for shard in best.shards if shard.table == 0}) > 1


def test_a_table_larger_than_a_device_is_spread():
    large = Table("large", 600_000_000, 64)  # 154 GB
    best = Sharder([large], H100, 4096).plans()[0]
    assert len(best.shards) > 2


def test_a_plan_of_others_is_priced_the_same_way():
    tables = [Table(f"t{n}", 10**5, 64, 10.0) for n in range(16)]
    sharder = Sharder(tables, H100, 4096)
    best = sharder.plans()[0]
    assert sharder.priced("again", best.shards).seconds == pytest.approx(best.seconds)


def test_what_does_not_fit_says_how_many_ranks_would_do():
    with pytest.raises(NoPlanError, match="the tables need") as wrong:
        Sharder([Table("huge", 10**10, 64)], H100, 4096)
    assert "--ranks" in wrong.value.hint


def test_more_ranks_than_samples_are_refused():
    with pytest.raises(UsageError, match="more than the 4 samples"):
        Sharder([Table("t", 10, 16)], H100, 4)


def test_the_choice_is_explained():
    plans = Sharder([Table(f"t{n}", 10**5, 64, 10.0) for n in range(9)], H100, 4096).plans()
    said = explain(plans[0], plans[1:])
    assert said.startswith(plans[0].name)
    assert "times as long" in said


def test_rows_of_two_bytes_are_looked_up_sooner_than_rows_of_four():
    tables = [Table("t", 10**7, 256, 20.0, itemsize=item) for item in (4, 2)]
    both = Sharder(tables, H100, 16384).parts()
    for item, each in enumerate(tables):
        alone = Sharder([each], H100, 16384).parts()
        assert (both.forward[item], both.backward[item]) == (alone.forward[0], alone.backward[0])
    assert both.forward[1] < 0.7 * both.forward[0]
    assert both.backward[1] < both.backward[0]
