"""A predicted step: its parts add up, ranges hold it, what does not fit is refused."""

from dataclasses import replace
from math import log

import pytest

from tests.planner.toy import kernel, step_of
from weft.cost.ranges import divided_term, range_term
from weft.errors import NoPlanError
from weft.hardware import platform
from weft.hardware.measured import MeasuredNoise
from weft.models.expert_layer import has_experts
from weft.models.find import find_job
from weft.models.named import generate
from weft.planner.job_prediction import predict_job
from weft.planner.planning import plan
from weft.planner.predict import joint_share, predict
from weft.planner.prices import Prices
from weft.schedule import Cost
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
    graph = generate("llama-70b", 32, {"batch": "32"})
    with pytest.raises(NoPlanError, match="a rank") as wrong:
        predict(graph, NODES)
    assert "times as many ranks" in wrong.value.hint
    assert predict(graph, NODES, anyway=True).seconds > 0


def test_what_no_sharing_makes_fit_asks_for_more_ranks():
    graph = generate("llama-70b", 8, {"batch": "8"})
    assert graph.memory is not None
    with pytest.raises(NoPlanError, match="a rank") as wrong:
        predict(graph, H100)
    each = (graph.memory.weights + graph.memory.gradients + graph.memory.optimizer) / 8
    assert each > H100.require_device().memory_bytes
    assert f"{each / 2**30:.1f} GiB a rank" in wrong.value.hint
    assert "times as many" not in wrong.value.hint


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_between_nodes_takes_longer_than_inside(kind):
    prices, what = Prices(NODES), Collective(kind, 1 << 26)
    inside = prices.collective(what, tuple(range(8)))
    between = prices.collective(what, tuple(range(0, 32, 8)))
    assert 0 < inside < between


def _products(*sides):
    """A step of one product after another, each as long as those before together."""
    costs = [Cost(family="gemm", shape=(m, 4096, 4096), dtype="bf16") for m in sides]
    return step_of(*(kernel(f"gemm {n}", None, cost=cost) for n, cost in enumerate(costs)), ranks=1)


def test_independent_errors_of_many_shapes_cancel_and_common_ones_do_not():
    machine = H100.resized(1)
    prices = Prices(machine)
    shares = [
        joint_share(_products(*(4096 + 64 * n for n in range(count))), prices, "high")
        for count in (1, 4, 16, 64)
    ]
    assert shares[0] == pytest.approx(1.0)
    assert shares == sorted(shares, reverse=True)
    term, alike = range_term("elsewhere", "gemm").up, divided_term("elsewhere", "gemm")[1].up
    assert 0.5 * alike / (term + 0.1) < shares[-1] < 0.8


def test_a_step_with_experts_has_their_term_in_its_range():
    graph = generate("qwen3-30b-a3b", 8, {"layers": "2", "ep": "8", "batch": "8"})
    assert has_experts(graph)
    assert not has_experts(generate("gpt2", 8, {"layers": "2", "batch": "8"}))
    found, other = (
        predict(each, H100, anyway=True) for each in (graph, replace(graph, source="recorded"))
    )
    assert found.seconds == other.seconds
    widened = log(other.high / other.seconds) ** 2
    widened += (found.of_experts * range_term("experts", "other").up) ** 2
    assert 0 < found.of_experts <= 1
    assert log(found.high / found.seconds) ** 2 == pytest.approx(widened)


def test_a_noisy_calibration_widens_the_range_of_every_step_on_it():
    graph = _products(4096, 8192)
    widths = []
    for foreign in (0.0, 0.1, 0.4):
        machine = replace(H100.resized(1), noise=MeasuredNoise(foreign, 0.0, 1.0))
        found = predict(graph, machine)
        widths.append(found.high / found.low)
    assert widths == sorted(widths)
    assert widths[-1] > 1 / 0.6**2


def test_a_plan_is_as_uncertain_as_the_prediction_of_its_stack():
    given = {"batch": "8", "seq": "1024", "dp": "8"}
    wide = {}
    for stack in ("mlperf", "megatron-deepspeed"):
        job = find_job("gpt2", 8, given | {"stack": stack})
        assert job is not None
        found = plan(job.graph(), H100, mode="heuristic", software=job.software)
        alone = predict_job(job, H100)
        wide[stack] = found.high / found.low
        assert wide[stack] == pytest.approx(alone.high / alone.low, rel=1e-6)
    assert wide["mlperf"] != pytest.approx(wide["megatron-deepspeed"], rel=1e-3)
