"""Fused embeddings as schedules: sound, complete, and in the order they promise."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.errors import UnknownNameError, UsageError
from weft.fused import (
    EmbeddingBatch,
    EmbeddingTable,
    column_wise,
    embedding_all_to_all,
    embedding_backward,
    row_wise,
    shard,
    table_wise,
)
from weft.fused.table_sharding import Placement
from weft.schedule import Kernel, Signal
from weft.schedule.check import check

TABLES = [
    EmbeddingTable("a", 100, 8),
    EmbeddingTable("b", 50, 16),
    EmbeddingTable("c", 7, 12),
    EmbeddingTable("d", 2, 4),
]
MIXED: dict[str, str | Placement] = {
    "a": "row-wise",
    "b": table_wise(0),
    "c": "column-wise",
    "d": row_wise(),
}
WAYS = st.sampled_from(["table-wise", "row-wise", "column-wise", MIXED])
BATCHES = {"plan": WAYS, "num_ranks": st.integers(1, 5), "samples": st.integers(0, 40)}


@given(**BATCHES, slices=st.integers(1, 5))
def test_schedules_pass_all_checks(plan, num_ranks, samples, slices):
    batch = EmbeddingBatch(shard(TABLES, plan, num_ranks), samples, slices)
    check(embedding_all_to_all(batch))
    check(embedding_backward(batch))


@given(**BATCHES)
def test_every_byte_of_every_output_is_written_once(plan, num_ranks, samples):
    batch = EmbeddingBatch(shard(TABLES, plan, num_ranks), samples)
    written: dict[Any, list[tuple[Any, Any]]] = {rank: [] for rank in range(num_ranks)}
    for _, command in embedding_all_to_all(batch).commands():
        for slot in command.writes if isinstance(command, Kernel) else ():
            if slot.buffer == "out":
                begin: Any = slot.offset
                written[slot.rank].append((begin, begin + slot.nbytes))
    for rank, spans in written.items():
        at = 0
        for begin, end in sorted(span for span in spans if span[0] < span[1]):
            assert begin == at
            at = end
        assert at == batch.out_bytes(rank)


def test_what_others_wait_for_is_pooled_first():
    batch = EmbeddingBatch(shard(TABLES, "table-wise", 3), 12, slices=2)
    for rank in range(3):
        commands = [c for _, c in embedding_all_to_all(batch).commands([rank])]
        pools = [c for c in commands if isinstance(c, Kernel) and c.op == "embedding_pool"]
        assert [c.writes[0].rank == rank for c in pools] == [False] * 4 + [True] * 2
        for number, command in enumerate(commands):
            if command in pools[:4]:
                following = commands[number + 1]
                assert isinstance(following, Signal)
                assert following.flag.rank == command.writes[0].rank


@given(plan=WAYS, num_ranks=st.integers(1, 5))
def test_shards_cover_every_element_once(plan, num_ranks):
    sharding = shard(TABLES, plan, num_ranks)
    for number, table in enumerate(TABLES):
        mine = [s for s in sharding.shards if s.table == number]
        held = [
            (row, column) for s in mine for row in range(*s.rows) for column in range(*s.columns)
        ]
        assert len(held) == len(set(held)) == table.rows * table.dim


def test_whole_tables_go_where_the_fewest_bytes_are():
    tables = [
        EmbeddingTable("a", 10, 4),
        EmbeddingTable("b", 100, 4),
        EmbeddingTable("c", 60, 4),
        EmbeddingTable("d", 30, 4),
    ]
    sharding = shard(tables, "table-wise", 2)
    assert [s.rank for s in sharding.shards] == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("plan", "error", "said"),
    [
        ({"a": row_wise(), "b": row_wise()}, UsageError, "sharding: 2 of 4"),
        ({**MIXED, "e": row_wise()}, UnknownNameError, "'e'"),
        (["table-wise"] * 3, UsageError, "3 entries for 4 tables"),
        ("rowwise", UnknownNameError, "'rowwise'"),
        (table_wise(2), UsageError, "rank 2"),
        (column_wise(1, 1), UsageError, r"ranks \[1, 1\]"),
        (Placement("table-wise", (0, 1)), UsageError, r"\[0, 1"),
    ],
)
def test_a_sharding_that_cannot_be_is_refused(plan, error, said):
    with pytest.raises(error, match=said):
        shard(TABLES, plan, 2)


def test_tables_need_names_of_their_own():
    with pytest.raises(UsageError, match="tables: names must be"):
        shard([EmbeddingTable("a", 1, 1), EmbeddingTable("a", 2, 2)], "row-wise", 2)


def test_a_schedule_can_be_priced_on_hardware():
    times = {}
    for pooling in (10.0, 40.0):
        batch = EmbeddingBatch(shard(TABLES, MIXED, 8), 4096, pooling=pooling)
        platform = weft.platform("mi300x-8")
        timeline = weft.simulate(embedding_all_to_all(batch), platform)
        times[pooling] = timeline.makespan
        assert weft.simulate(embedding_backward(batch), platform).makespan > 0
    assert times[40.0] > times[10.0]
