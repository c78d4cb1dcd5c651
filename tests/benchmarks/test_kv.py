import pytest

from benchmarks import kv
from benchmarks.rows import Options


@pytest.mark.multiprocess
@pytest.mark.torch
def test_every_way_gathers_the_same_bytes(monkeypatch):
    monkeypatch.setattr(kv, "BLOCKS", 16)
    (row,) = kv.run(Options(sizes=(512,), rounds=2))
    assert row.more == {"wrong": 0}
    assert set(row.peers) == {"copy_", "index_select"}
    assert len(row.times) == 2
