"""Steps on ranks that are cores."""

from dataclasses import replace

import pytest

from weft.errors import UnknownNameError
from weft.hardware import platform
from weft.hardware.curves import Errors, Fit, Library
from weft.hardware.measured import Ddp, OpCostModel, TorchHost
from weft.models.named import generate
from weft.planner.on_cores import on_cores
from weft.planner.planning import plan
from weft.planner.predict import predict
from weft.planner.prices import Prices, default_library, known_library
from weft.schedule import Cost, Group
from weft.step import Collective, Op, RankStep, StepGraph


def _here():
    """Make a machine of two cores that was measured with Gloo and torch."""
    plain = platform("cpu")
    op_models = tuple(
        OpCostModel(family, 1, {"call": 1e-5}, 9, 0.1, 0.9, 1.1)
        for family in ("gemm", "copy", "elementwise", "optimizer")
    )
    errors = Errors(2, 0.0, 0.0, 1.0)
    fit = Fit("2.13", "all_reduce", "any", (2,), ((1.0, 1e-3), (1e6, 2e-3)), (), (), 0, errors)
    gloo = Library("gloo", "here", "measured", "a test", "here", 1, 1 << 20, (fit,))
    return replace(
        plain,
        device=replace(plain.require_device(), op_models=op_models),
        libraries=(gloo,),
        torch=TorchHost(2e-6, 3e-6, 4e-6),
    ).resized(2)


def _workload(source="captured"):
    ops = (
        Op("gemm", cost=Cost("gemm", (8, 8, 8), "fp32"), phase="backward"),
        Op(
            "all_reduce",
            "collective",
            "comm world",
            collective=Collective("all_reduce", 2, "fp32"),
            after=(0,),
            phase="backward",
        ),
        Op("gemm", cost=Cost("gemm", (8, 8, 8), "fp32"), phase="backward"),
    )
    return StepGraph("w", 2, (RankStep((0, 1), ops),), source=source)


def test_stages_of_a_pipeline_do_not_wait_for_each_other_forever():
    machine = platform("cpu")
    graph = generate("gpt2", 2, {"pp": "2", "layers": "2", "batch": "4", "seq": "64"})
    found = predict(graph, machine)
    assert found.breakdown["compute"] < found.seconds
    assert plan(graph, machine).baseline == pytest.approx(found.seconds)


def test_nothing_overlaps_on_cores():
    here = _here()
    found = predict(_workload(), here, prices=Prices(here, library="gloo"))
    # Two products and their host, then Gloo: what it was measured to take, all of it exposed.
    assert found.seconds == pytest.approx(2e-5 + 1e-3 + 3 * 3e-6, abs=1e-5)
    assert found.breakdown["exposed"] == pytest.approx(1e-3, rel=0.01)


def test_devices_that_are_no_cores_keep_their_streams():
    graph = _workload()
    assert on_cores(graph, platform("h100-8").resized(2), "nccl") is graph


def test_generated_steps_get_the_copies_of_ddp():
    names = [op.name for op in on_cores(_workload("generated: w"), _here(), "gloo").steps[0].ops]
    assert names == ["gemm", "copies of DDP", "all_reduce", "gemm"]
    assert len(on_cores(_workload(), _here(), "gloo").steps[0].ops) == 3


def test_what_was_waited_for_is_still_waited_for():
    ops = on_cores(_workload("generated: w"), _here(), "gloo").steps[0].ops
    assert ops[2].after == (0,)


def test_gradients_are_copied_into_their_bucket_and_out_of_it():
    copies = on_cores(_workload("generated: w"), _here(), "gloo").steps[0].ops[1]
    assert copies.cost is not None
    # Two bytes are read and written on the way in, and again on the way out.
    assert (copies.cost.family, copies.cost.nbytes, copies.cost.flops) == ("copy", 8, 0)
    assert (copies.phase, copies.stream) == ("backward", "compute")


def _with_ddp():
    here = _here()
    assert here.torch is not None
    return replace(here, torch=replace(here.torch, ddp={"gloo": Ddp(step=3.0, byte=0.5)}))


def test_what_ddp_was_measured_to_spend_stands_instead_of_copies():
    added = on_cores(_workload("generated: w"), _with_ddp(), "gloo").steps[0].ops[1]
    assert (added.name, added.kind, added.seconds) == ("ddp", "host", 3.0 + 0.5 * 2)
    other = on_cores(_workload("generated: w"), _with_ddp(), "weft").steps[0].ops[1]
    assert other.name == "copies of DDP"


def test_a_plan_starts_from_what_is_predicted_on_cores():
    here, graph = _with_ddp(), _workload("generated: w")
    assert plan(graph, here).baseline == pytest.approx(predict(graph, here).seconds)


@pytest.mark.parametrize("change", [{"kind": "all_gather"}, {"group": "tp"}, {}])
def test_only_reductions_of_gradients_are_in_buckets(change):
    gemm, reduce, last = _workload().steps[0].ops
    assert reduce.collective is not None
    other = replace(reduce, collective=replace(reduce.collective, **change))
    other = other if change else replace(other, phase="forward")
    steps, groups = (RankStep((0, 1), (gemm, other, last)),), {"tp": Group(2)}
    step = StepGraph("w", 2, steps, groups, source="generated: w")
    assert len(on_cores(step, _here(), "gloo").steps[0].ops) == 3


def test_an_optimizer_on_a_cpu_passes_over_memory_op_by_op():
    cost = Cost("optimizer", (), "fp32", nbytes=28 * 1000)
    ops = (Op("adamw", cost=cost), Op("sgd", cost=cost), Op("adamw"), Op("sgd"))
    step = StepGraph("w", 2, (RankStep((0, 1), ops),), source="generated: w")
    found = on_cores(step, _here(), "gloo").steps[0].ops
    assert [op.cost.nbytes if op.cost else None for op in found] == [88_000, 28_000, None, None]


@pytest.mark.parametrize("name", ["gpt2", "bert-base"])
def test_generated_models_have_a_price_on_cores(name):
    here = _here()
    settings = {"batch": "2", "layers": "1", "dtype": "fp32"}
    graph = generate(name, 2, settings)
    found = predict(graph, here, anyway=True, prices=Prices(here, library="gloo"))
    assert found.low <= found.seconds <= found.high


def test_the_library_is_the_measured_one_and_another_is_named():
    here = _here()
    assert default_library(here) == "gloo"
    assert default_library(platform("h100-8")) == "nccl"
    with pytest.raises(UnknownNameError, match="glo"):
        known_library(here, "glo")
