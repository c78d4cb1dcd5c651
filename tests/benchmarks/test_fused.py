"""The benchmark of fused operators: cases, judgement, and equal results of all contestants."""

import numpy as np
import pytest

from benchmarks import environments, fused
from benchmarks.lookups import SHAPES, Lookups, cases
from benchmarks.rows import Options
from weft.errors import UnknownNameError
from weft.local_runs import contest

SMALL = Lookups(tables=4, rows=50, dim=8, batch=12, pooling=3, zipf=1.05)


def test_every_table_is_held_by_one_rank():
    held = [table for rank in range(3) for table in SMALL.held(rank, 3)]
    assert held == list(range(4))


def test_values_add_up_exactly_in_any_order():
    values = SMALL.values(1)
    picked = values[SMALL.indices(1, 0)]
    forth, back = picked[0], picked[-1]
    for row in picked[1:]:
        forth = forth + row
    for row in picked[-2::-1]:
        back = back + row
    assert np.array_equal(forth, back)
    assert not np.array_equal(values, SMALL.values(2))


def test_few_rows_are_asked_for_often_where_zipf_says_so():
    wide = Lookups(1, 1000, 4, 500, 10, 1.05)
    flat = Lookups(1, 1000, 4, 500, 10, 0.0)
    most = [np.bincount(each.indices(0, 0), minlength=1000).max() for each in (wide, flat)]
    assert most[0] > 10 * most[1]
    assert wide.indices(0, 0).max() < 1000


def test_rows_are_counted():
    options = Options(ranks=(2,), collectives=("embedding", "embedding_all_to_all", "dlrm_step"))
    assert fused.count_rows(options) == 2 * len(list(cases())) + 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(against=("nccl",)), "unknown peer"),
        (Options(collectives=("gemm",)), "unknown operator"),
    ],
)
def test_what_nobody_knows_is_said(options, said):
    with pytest.raises(UnknownNameError, match=said):
        next(iter(fused.run(options)))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(contest, "LONG_ENOUGH", 0)
    monkeypatch.setattr(fused, "cases", lambda: iter([SMALL]))
    shape = (SMALL.tables, SMALL.rows, SMALL.dim, SMALL.batch, SMALL.pooling)
    monkeypatch.setattr(fused, "SHAPES", (shape, *SHAPES[1:]))


@pytest.mark.multiprocess
@pytest.mark.torch
@pytest.mark.slow
def test_weft_and_gloo_get_the_same_rows_and_losses(small):
    rows = list(fused.run(Options(against=("gloo",), ranks=(2,), rounds=1)))
    assert [row.case["operator"] for row in rows] == list(fused.OPERATORS)
    assert all(row.more["same"] for row in rows)
    assert all(set(row.peers) == {"gloo"} for row in rows)


@pytest.mark.multiprocess
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("peer", ["mpich", "openmpi", "fbgemm", "torchrec"])
def test_peers_in_environments_of_their_own_get_the_same_rows(small, peer):
    if not (environments.root() / peer / "complete").exists():
        pytest.skip(f"no environment of {peer}: make peers")
    options = Options((peer,), (2,), rounds=1, collectives=("embedding_all_to_all",))
    (row,) = fused.run(options)
    assert row.more["same"]
