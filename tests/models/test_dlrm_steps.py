"""Steps of DLRM as programs run them: replicated tables, nodes, optimizers, what is fused."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from weft.errors import UsageError
from weft.hardware import platform
from weft.models import dlrm
from weft.models.dlrm import Dlrm
from weft.models.named import DLRMS, job_of
from weft.models.stacks import stack_named
from weft.models.tables import Table, cut_by_rows
from weft.planner.predict import predict_seconds
from weft.step import NO_HOST
from weft.step.step_graph import StepGraph, check

H100 = platform("h100-8")
BIG, SMALL = 1_000_000, 100
TABLES = tuple(Table(f"table{n}", BIG if n % 2 else SMALL, 64, 4.0, 1.05) for n in range(16))


def step(num_ranks: int = 8, *, batch: int = 4096, **settings: Any) -> StepGraph:
    found = dlrm.build("d", Dlrm(TABLES, batch=batch, **settings), num_ranks)
    check(found)
    return found


def seconds(**settings: Any) -> float:
    return predict_seconds(step(**settings), H100, host=NO_HOST)


def sent(graph: StepGraph, kind: str) -> list[int]:
    """Return bytes of the collectives of a kind, on the ranks of the last class."""
    found = [op.collective for op in graph.steps[-1].ops if op.collective is not None]
    return [what.nbytes for what in found if what.kind == kind]


def test_replicated_tables_are_looked_up_by_every_rank_and_reduced_instead_of_exchanged():
    whole, some = step(), step(replicated=SMALL)
    assert sum(sent(some, "all_to_all")) == sum(sent(whole, "all_to_all")) // 2
    more = sum(sent(some, "all_reduce")) - sum(sent(whole, "all_reduce"))
    assert more == 8 * SMALL * 64 * 4
    local = [
        op.cost.shape
        for op in some.steps[-1].ops
        if op.cost is not None and op.cost.family == "embedding" and op.cost.shape[1] == SMALL
    ]
    assert [(shape[0], shape[5]) for shape in local] == [(4096 // 8, 8)]


def test_a_bottom_mlp_on_the_first_rank_is_of_all_samples_and_nowhere_else():
    graph = step(bottom_first=True)
    for one in graph.steps:
        rows = {op.cost.shape[0] for op in one.ops if op.name == "bottom 0" and op.cost is not None}
        assert rows == ({4096} if 0 in one.ranks else set())
    first = graph.steps[graph.step_of[0]]
    assert first.ranks == (0,)
    assert not any(op.name == "embedding" for op in first.ops)


def test_nodes_add_up_inside_before_they_exchange_and_gather_on_the_way_back():
    graph = step(16, node=8)
    kinds = [
        (op.collective.kind, op.collective.group)
        for op in graph.steps[-1].ops
        if op.collective is not None and op.collective.kind != "all_reduce"
    ]
    assert kinds == [
        ("reduce_scatter", "node"),
        ("all_to_all", "nodes"),
        ("all_to_all", "nodes"),
        ("all_gather", "node"),
    ]
    inside, between = sent(graph, "reduce_scatter")[0], sent(graph, "all_to_all")[0]
    assert inside == 8 * between


def test_vectors_of_fp32_are_twice_as_large_as_those_of_half_precision():
    half, single = (step(dtype="fp16", exchange_dtype=each) for each in ("", "fp32"))
    assert sent(single, "all_to_all") == [2 * nbytes for nbytes in sent(half, "all_to_all")]


def test_optimizers_with_more_state_take_longer_and_need_more_memory():
    found = [seconds(optimizer=each) for each in ("sgd", "adagrad", "adam")]
    assert found == sorted(found)
    assert len(set(found)) == 3
    memory = [step(optimizer=each).memory for each in ("sgd", "adagrad", "adam")]
    assert [each.optimizer / each.weights for each in memory if each is not None] == [0, 1, 2]


@pytest.mark.parametrize("name", ["fused_relu", "fused_interaction", "fused_update"])
def test_what_is_fused_takes_less(name):
    # so large a batch that kernels, not the sums of gradients, decide when the step ends
    fused, plain = (seconds(batch=65536, **{name: each}) for each in (True, False))
    assert fused < plain


def test_tables_are_read_in_their_own_dtype():
    for op in step(dtype="fp16").ops():
        if op.cost is not None and op.cost.family.startswith("embedding"):
            assert op.cost.dtype == "fp32"


@pytest.mark.parametrize("stack", ["hugectr", "deeplearningexamples", "deeplearningexamples-tf"])
def test_time_between_steps_is_added_once(stack):
    software, graph = stack_named(stack), step()
    slow = predict_seconds(software.applied(graph), H100)
    assert slow > predict_seconds(graph, H100, host=NO_HOST)
    assert software.between_steps > 0
    assert sum(op.name == "between steps" for op in software.applied(graph).steps[0].ops) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"node": "3"}, "nodes of 3 do not divide 8 ranks"),
        ({"optimizer": "lion"}, "unknown optimizer of tables 'lion'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        job_of("dlrm", 8, settings).graph()


SHARDED = [table for table in DLRMS["dlrm-dcnv2"].tables if table.rows > 7812]


@pytest.mark.parametrize(("places", "ranks"), [(4, 1), (8, 1), (64, 1), (8, 8)])
def test_tables_that_are_cut_lose_no_row_and_every_rank_has_room(places, ranks):
    rows, used = defaultdict[int, int](int), defaultdict[int, float](float)
    for shard in cut_by_rows(SHARDED, places, 7 / 4, ranks=ranks):
        rows[shard.table] += shard.rows
        used[shard.rank] += 2 * shard.nbytes(4)
        assert 0 <= shard.rank < places * ranks
    assert set(rows) == set(range(len(SHARDED)))
    assert all(count == pytest.approx(SHARDED[n].rows, rel=5e-3) for n, count in rows.items())
    assert max(used.values()) <= 60e9


def test_cutting_tables_evens_out_lookups_and_shortens_the_step():
    lookups = defaultdict[int, float](float)
    for shard in cut_by_rows(SHARDED, 8, 7 / 4):
        table = SHARDED[shard.table]
        lookups[shard.rank] += table.pooling * shard.rows / table.rows
    assert max(lookups.values()) < 1.3 * sum(lookups.values()) / 8
    whole, cut = (
        predict_seconds(job_of("dlrm-dcnv2", 8, {"cut": each}).graph(), H100, host=NO_HOST)
        for each in ("0", "1.75")
    )
    assert cut < whole
