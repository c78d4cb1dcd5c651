"""What the benchmark of weight updates measures."""

import numpy as np
import pytest

from benchmarks import weight_updates
from benchmarks.rows import Options
from benchmarks.weight_updates import _coded, changed_words, count_rows


@pytest.mark.parametrize("change", weight_updates.CHANGES)
def test_a_share_of_the_words_changes(change):
    before = np.arange(100_000, dtype=np.uint16)
    after = changed_words(before, 0.03, change, 1)
    assert np.mean(before != after) == pytest.approx(0.03, rel=0.1)
    step = (after - before).astype(np.int16)
    assert (np.abs(step[step != 0]) == 1).all() == (change == "one_ulp")


def test_an_update_is_encoded_and_applied_exactly(monkeypatch):
    random = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    monkeypatch.setattr(weight_updates, "trained_weights", lambda: random)
    row = _coded(8 << 20, 0.01, "one_ulp", 2)
    assert len(row.times) == 2
    assert row.more["ratio"] > 90


def test_rows_are_counted():
    assert count_rows(Options()) == 7
    assert count_rows(Options(sizes=(1, 2), rates=(1.0, 2.0))) == 20
