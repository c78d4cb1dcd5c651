"""Folded steps take as long as the whole ones that they stand for."""

import random
from dataclasses import replace
from typing import Any

import pytest

from weft.errors import NoPlanError
from weft.hardware import platform
from weft.models import transformer_step
from weft.models.folding import MANY_OPS, Folding, ops_of
from weft.models.job import Job
from weft.models.zoo import MODELS
from weft.planner.job_prediction import predict_job
from weft.planner.predict import predict
from weft.planner.prices import Prices
from weft.step import StepEngine, check

pytestmark = pytest.mark.thorough

H100 = platform("h100-8")
PRICES = Prices(H100)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama-8b", {"pp": 4, "tp": 2, "sp": True}),
    ("llama-8b", {"pp": 4, "interleave": 2, "zero": 1}),
    ("llama-8b", {"fsdp": True}),
    ("llama-8b", {"pp": 2, "fsdp": True}),
    ("llama-8b", {"pp": 4, "schedule": "gpipe"}),
    ("llama-8b", {"pp": 4, "schedule": "zb"}),
    ("llama-8b", {"pp": 4, "cp": 2, "recompute": "full"}),
    ("llama-8b", {"pp": 4, "tp": 2, "lora": 16}),
    ("mixtral-8x7b", {"pp": 2, "ep": 4}),
    ("mixtral-8x7b", {"pp": 2, "ep": 4, "ep_overlap": True}),
    ("mixtral-8x7b", {"pp": 2, "ep": 4, "interleave": 2, "ep_overlap": True}),
    ("mixtral-8x7b", {"ep": 8, "ep_overlap": True, "dispatcher": "flex"}),
    ("mixtral-8x7b", {"pp": 4, "ep": 2, "schedule": "dualpipe"}),
    ("llama-8b", {"pp": 4, "tp": 2, "schedule": "dualpipe"}),
    ("gpt2-large", {"pp": 4, "micro_batch": 4}),
]


def model_of(name, given):
    usual: dict[str, Any] = {"layers": 8, "batch": 96, "seq": 2048, "micro_batch": 1}
    return replace(MODELS[name], **{**usual, **given})


@pytest.mark.parametrize(("name", "given"), CASES)
def test_a_folded_step_takes_as_long_as_the_whole_one(name, given):
    model = model_of(name, given)
    whole = predict(transformer_step.build(name, model, 8), H100, anyway=True, prices=PRICES)
    folding = Folding(name, model, 8, H100, PRICES)
    graph = folding.graph()
    check(graph)
    folded = predict(graph, H100, anyway=True, prices=PRICES)
    assert folded.seconds == pytest.approx(whole.seconds, rel=0.01)
    assert folded.graph.memory == whole.graph.memory
    for part in ("compute", "exposed"):
        off = folded.breakdown[part] - whole.breakdown[part]
        assert abs(off) < 0.03 * whole.seconds, part
    assert sum(len(step.ops) for step in graph.steps) < 0.5 * sum(1 for _ in whole.graph.ops())


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("gpt2-large", {"pp": 2, "seq": 512, "recompute": "selective"}),  # nothing to communicate
        ("gpt2-large", {"pp": 4, "cp": 2, "schedule": "gpipe"}),
        ("gpt2-large", {"zero": 3, "seq": 512, "batch": 64}),
        ("mixtral-8x7b", {"pp": 2, "tp": 2, "ep": 2, "schedule": "zb", "seq": 512, "batch": 16}),
    ],
)
def test_a_folded_step_waits_for_the_host_as_the_whole_one_does(name, given, brief):
    """Small kernels: the host takes longer to issue a pass than the device to compute it."""
    model = model_of(name, given)
    whole = StepEngine(transformer_step.build(name, model, 8), H100, PRICES).run()
    folding = Folding(name, model, 8, H100, PRICES, brief=brief)
    folded = StepEngine(folding.graph(model.pp if brief else 0), H100, PRICES).run()
    assert folded.seconds == pytest.approx(whole.seconds, rel=0.05)


def test_a_step_of_few_micro_batches_leaves_none_out():
    model = model_of("llama-8b", {"pp": 4, "batch": 8, "tp": 2})
    graph = Folding("llama-8b", model, 8, H100, PRICES).graph()
    assert not [op.name for op in graph.ops() if "more micro batches" in op.name]


@pytest.mark.parametrize("num_micro", [1, 2, 8])
def test_a_folded_step_keeps_every_micro_batch_of_passes_that_overlap(num_micro):
    model = model_of("mixtral-8x7b", {"ep": 8, "ep_overlap": True, "batch": 8 * num_micro})
    whole = StepEngine(transformer_step.build("x", model, 8), H100, PRICES).run()
    for kept in (0, model.pp):
        graph = Folding("x", model, 8, H100, PRICES, brief=True).graph(kept)
        folded = StepEngine(graph, H100, PRICES).run()
        assert folded.seconds == pytest.approx(whole.seconds, rel=0.05)


def test_a_deep_step_of_one_micro_batch_has_a_range(monkeypatch):
    monkeypatch.setattr("weft.planner.job_prediction._BRIEF_OPS", 100)
    job = Job(
        "llama-8b",
        model_of("llama-8b", {"batch": 8, "tp": 2, "zero": 3, "dp": 4, "micro_batch": 2}),
        8,
    )
    found = predict_job(job, H100, prices=PRICES, brief=True, anyway=True)
    assert found.low < found.seconds < found.high
    assert found.seconds == predict_job(job, H100, prices=PRICES, anyway=True).seconds


def random_layouts(seed, many):
    """Draw pipelines of 2,000 to 25,000 ops, whatever they communicate and launch."""
    draw = random.Random(seed)
    found: list[Job] = []
    while len(found) < many:
        pp, tp, turns = draw.choice((2, 4)), draw.choice((1, 2)), draw.choice((1, 2, 4, 8))
        options = {
            "pp": pp,
            "tp": tp,
            "sp": tp > 1,
            "schedule": draw.choice(("1f1b", "gpipe", "zb")),
            "zero": draw.choice((0, 1, 2, 3)),
            "layers": draw.choice((8, 16)),
            "seq": draw.choice((512, 2048, 4096)),
            "recompute": draw.choice(("none", "selective", "full")),
            "batch": 8 // (pp * tp) * turns * pp,
        }
        name = draw.choice(("llama-8b", "mixtral-8x7b", "gpt2-large"))
        model = model_of(name, options)
        if 2_000 < ops_of(model, 8) < 25_000:
            found.append(Job(name, model, 8))
    return found


@pytest.mark.parametrize(
    "job", [*random_layouts(1, 10), *random_layouts(2, 6)], ids=lambda job: job.name
)
def test_random_layouts_are_compared_as_whole_steps_would_be(job):
    """What the layout search predicts, by a folded step where it has many ops."""
    ranked = predict_job(job, H100, prices=PRICES, brief=True, anyway=True, ranged=False)
    whole = StepEngine(transformer_step.build(job.name, job.model, 8), H100, PRICES).run()
    assert ranked.seconds == pytest.approx(whole.seconds, rel=0.035)


def test_the_ops_of_a_step_are_estimated():
    model = model_of("llama-8b", {"pp": 4, "tp": 2})
    whole = sum(1 for _ in transformer_step.build("llama-8b", model, 8).ops())
    assert ops_of(model, 8) == pytest.approx(whole, rel=0.1)


def test_a_job_of_many_micro_batches_is_folded_and_has_a_range():
    machine = platform("h100-8x1024")
    model = replace(
        MODELS["llama-405b"], tp=8, pp=8, cp=2, interleave=8, sp=True, zero=1, count_ends=True,
        micro_batch=1, batch=384 * 64, math="fp8",
    )  # fmt: skip
    job = Job("llama-405b", model, 8192)
    assert ops_of(model, 8192) > MANY_OPS
    found = predict_job(job, machine)
    assert sum(1 for _ in found.graph.ops()) < MANY_OPS
    assert 0.7 < found.low / found.seconds < 1 < found.high / found.seconds < 1.6
    # six products of every weight and token, at no more than the rated speed of the device
    floor = job.flops / 8192 / machine.require_device().flops["fp8"].rated
    assert floor < found.seconds < 5 * floor
    assert {"gemm", "attention"} < set(found.families)


def test_a_job_that_does_not_fit_is_refused_before_it_is_simulated():
    model = replace(MODELS["llama-405b"], tp=8, batch=6400, micro_batch=1)
    with pytest.raises(NoPlanError, match="needs"):
        predict_job(Job("llama-405b", model, 64), platform("h100-8x8"))
