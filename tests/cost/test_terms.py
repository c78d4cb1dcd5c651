"""Prices of ops by cost models that were measured on the device itself."""

from dataclasses import replace

import numpy as np
import pytest

from weft.cost.attention import visible_keys
from weft.cost.families import FAMILIES
from weft.cost.price import price, price_columns
from weft.cost.terms import TERMS, op_seconds
from weft.hardware import platform
from weft.hardware.measured import OpCostModel
from weft.schedule import Cost


def _device(*op_models):
    return replace(platform("cpu").require_device(), op_models=op_models)


def _op_model(family, **terms):
    return OpCostModel(family, 1, terms, 10, 0.1, 0.9, 1.2)


def test_a_cost_model_of_the_device_decides():
    device = _device(_op_model("gemm", call=1e-6, flop=1e-11))
    found = price(Cost("gemm", (10, 20, 30), "fp32"), device)
    assert found.seconds == pytest.approx(1e-6 + 2 * 6000 * 1e-11)
    assert (found.low, found.high) == pytest.approx((0.9 * found.seconds, 1.2 * found.seconds))
    assert "measured" in found.model


def test_cost_models_of_other_thread_counts_do_not_count():
    device = _device(replace(_op_model("gemm", call=1.0), threads=2))
    assert price(Cost("gemm", (10, 20, 30), "fp32"), device).seconds < 0.5


def test_an_unknown_kernel_takes_what_it_moves():
    device = _device(_op_model("elementwise", call=1e-6, byte=1e-9))
    found = price(Cost("other", (), "fp32", 0.0, 1000), device)
    assert found.seconds == pytest.approx(2e-6)
    assert found.low < found.seconds < found.high


@pytest.mark.parametrize("family", TERMS)
def test_every_family_with_terms_can_be_priced(family):
    names = FAMILIES[family].columns
    columns = {name: np.array([4.0, 8.0]) for name in names if name in FAMILIES[family].required}
    device = _device(_op_model(family, call=1e-6))
    assert price_columns(family, columns, device, "fp32").seconds == pytest.approx([1e-6, 1e-6])


def test_attention_counts_only_keys_that_are_seen():
    sides = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "window")
    columns = {name: np.array([8.0, 8.0]) for name in sides} | {"causal": np.array([0.0, 1.0])}
    columns["window"] = np.zeros(2)
    whole, causal = op_seconds(_op_model("attention", score=1.0), columns)
    assert causal == pytest.approx(whole * 4.5 / 8)


def test_causal_queries_beyond_the_keys_see_none_of_them():
    sides = {"batch": 1, "heads": 1, "queries": 16, "keys": 4, "head_dim": 8, "causal": 1}
    columns = {name: np.array([float(side)]) for name, side in {**sides, "window": 0}.items()}
    assert op_seconds(_op_model("attention", score=1.0), columns) == pytest.approx(1 + 2 + 3 + 4)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    ("queries", "keys", "window"),
    [(8, 8, 3), (4, 8, 3), (8, 8, 8), (8, 8, 20), (1, 8, 3), (8, 8, 4)],
)
def test_a_window_hides_from_each_query_what_lies_before_it(queries, keys, window, causal):
    sides = {"queries": queries, "keys": keys, "window": window, "causal": causal}
    columns = {name: np.array([float(side)]) for name, side in sides.items()}
    places = [keys - queries + n + 1 if causal else keys for n in range(queries)]
    seen, most = visible_keys(columns)
    assert seen == pytest.approx(sum(min(place, window) for place in places) / queries)
    assert most == min(keys, window)
