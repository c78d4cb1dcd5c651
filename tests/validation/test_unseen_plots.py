"""How well ranges hold is counted right."""

import numpy as np
import pytest

from validation.unseen_plots import UnseenTable, plots


def test_a_range_that_is_stretched_holds_the_share_that_it_is_meant_to():
    spread = np.random.default_rng(0).normal(0.0, 0.1, 20_000)
    price = np.ones_like(spread)
    edge = 1.2815515655446004 * 0.1  # four of five of a normal distribution
    table = UnseenTable("drawn", np.exp(spread), price, price * np.exp(-edge), price * np.exp(edge))
    for share in (0.2, 0.5, 0.8, 0.95):
        assert table.inside(share) == pytest.approx(share, abs=0.02)


def test_without_tables_nothing_is_drawn(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    assert plots() == {}
