"""A predicted step: its parts add up, ranges hold it, what does not fit is refused."""

import pytest

from weft.errors import NoPlanError
from weft.hardware import platform
from weft.models.named import generate
from weft.planner.predict import predict
from weft.planner.prices import Prices
from weft.step import Collective, RankStep, StepGraph

H100 = platform("h100-8")
NODES = platform("h100-8x4")


@pytest.fixture(scope="module")
def gpt2():
    return predict(generate("gpt2", 8, {"batch": "32"}), H100)


def test_the_parts_of_a_step_add_up(gpt2):
    assert sum(gpt2.breakdown.values()) == pytest.approx(gpt2.seconds, rel=1e-6)
    assert min(gpt2.breakdown.values()) >= 0


def test_a_step_without_ops_takes_no_time_and_has_tables():
    found = predict(StepGraph("idle", 8, (RankStep(tuple(range(8)), ()),)), H100)
    assert found.seconds == found.low == found.high == 0.0
    assert {row["share"] for row in found.tables()["breakdown"]()} == {0.0}


def test_the_range_holds_the_prediction(gpt2):
    assert gpt2.low < gpt2.seconds < gpt2.high


def test_products_are_most_of_a_transformer(gpt2):
    assert next(iter(gpt2.families)) == "gemm"


def test_exposed_is_part_of_communication(gpt2):
    assert 0 < gpt2.breakdown["exposed"] <= gpt2.communication


def test_the_critical_path_is_as_long_as_the_step(gpt2):
    assert sum(seconds for _, seconds in gpt2.critical_path(1000)) <= gpt2.seconds * (1 + 1e-6)


def test_the_row_has_the_keys_of_a_result(gpt2):
    row = gpt2.row()
    assert {"seconds", "low", "high", "breakdown", "basis"} <= set(row)
    assert row["basis"] == "predicted"


def test_stages_of_a_pipeline_wait():
    found = predict(generate("gpt2", 4, {"pp": "4", "batch": "8"}), H100.resized(4))
    assert found.breakdown["waiting"] > 0.1 * found.seconds


def test_more_ranks_take_less_time_each():
    given = {"fsdp": "1", "batch": "32", "seq": "2048", "recompute": "1"}
    few = predict(generate("llama-8b", 8, given), H100)
    many = predict(generate("llama-8b", 32, given), NODES)
    assert few.seconds / 4 < many.seconds < few.seconds / 2


def test_what_does_not_fit_says_what_would():
    graph = generate("llama-70b", 8, {"batch": "8"})
    with pytest.raises(NoPlanError, match="a rank") as wrong:
        predict(graph, H100)
    assert "times as many ranks" in wrong.value.hint
    assert predict(graph, H100, anyway=True).seconds > 0


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_between_nodes_takes_longer_than_inside(kind):
    prices, what = Prices(NODES), Collective(kind, 1 << 26)
    inside = prices.collective(what, tuple(range(8)))
    between = prices.collective(what, tuple(range(0, 32, 8)))
    assert 0 < inside < between
