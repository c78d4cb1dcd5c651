"""Stacks: what they change of a step, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weft.cost.ranges import range_term
from weft.errors import FormatError, UnknownNameError
from weft.hardware import platform
from weft.models.named import job_of
from weft.models.stacks import Stack, _read, stack_named, stack_names
from weft.planner.job_prediction import predict_job
from weft.planner.predict import predict, predict_seconds
from weft.step import NO_HOST
from weft.step.step_graph import check

SETTINGS = {"fsdp": "true", "layers": "4"}
H100 = platform("h100-8")


@pytest.fixture(scope="module")
def step():
    return job_of("gpt2", 8, SETTINGS).graph()


def kernels(graph, *families):
    return [op for op in graph.ops() if op.cost is not None and op.cost.family in families]


def test_a_stack_without_numbers_changes_nothing(step):
    assert Stack("none").applied(step) == step


@pytest.mark.parametrize("name", stack_names())
def test_every_stack_is_read_says_its_source_and_runs(step, name):
    stack = stack_named(name)
    assert stack.source
    made = stack.applied(step)
    check(made)
    assert predict_seconds(made, H100) > 0


@pytest.mark.parametrize(
    ("number", "families"),
    [
        ("products", ("gemm",)),
        ("passes", ("norm", "elementwise")),
        ("attention_forward", ("attention",)),
        ("attention_backward", ("attention-backward",)),
    ],
)
def test_a_number_makes_its_kernels_as_much_longer(step, number, families):
    slow: dict[str, Any] = {number: 3.0}
    made = Stack("slow", **slow).applied(step)
    assert kernels(step, *families)
    for before, after in zip(step.ops(), made.ops(), strict=True):
        if before.cost is None or after.cost is None:
            continue
        mine = before.cost.family in families
        others = number == "passes"  # scales every kernel that is no product or attention
        assert after.cost.scale == 3.0 if mine else others or after.cost.scale == 1.0
    seconds = [predict_seconds(each, H100, host=NO_HOST) for each in (step, made)]
    assert seconds[1] > seconds[0]


def test_gathered_weights_are_copied_out_once_and_gradients_in(step):
    made = Stack("copies", copies=1.0).applied(step)
    moved = [
        op.collective for op in step.ops() if op.collective is not None and op.stream == "comm dp"
    ]
    copies = kernels(made, "copy")
    assert len(copies) == len(moved)
    assert sum(op.cost.nbytes for op in copies) == 2 * sum(what.nbytes for what in moved)
    (ops,) = (each.ops for each in made.steps)
    for op in copies:
        if op.name == "copy out":
            (gathered,) = op.after
            assert ops[gathered].collective.kind == "all_gather"
    others = [op.name for op in made.ops() if op.name not in ("copy in", "copy out")]
    assert others == [op.name for op in step.ops()]


def test_graphs_cost_the_host_nothing(step):
    made = stack_named("mlperf").applied(step)
    assert all(op.host == 0 for op in made.ops() if op.kind != "host")


def test_a_pipeline_waits_for_what_it_receives():
    graph = job_of("gpt2", 8, {"pp": "2", "batch": "16", "layers": "4"}).graph()
    made = Stack("waits", blocking_messages=True).applied(graph)
    blocking = {op.collective.kind for op in made.ops() if op.blocking and op.collective}
    assert blocking == {"recv"}


@pytest.mark.parametrize("pp", [1, 2])
def test_a_host_that_waits_at_the_ends_of_passes_launches_them_one_by_one(pp):
    settings = {"layers": "4", "pp": str(pp), "batch": "8", "micro_batch": "2", "dp": "1"}
    step = job_of("gpt2", pp, settings).graph()
    made = Stack("waits", blocking_passes=True).applied(step)
    for before, after in zip(step.steps, made.steps, strict=True):
        ends = [op for op in after.ops if op.blocking]
        assert all(op.kind == "kernel" for op in ends)
        assert len(ends) == 2 * 4 + 1  # four micro batches, forward and backward; the optimizer
        assert tuple(replace(op, blocking=False) for op in after.ops) == before.ops
    machine = platform("a100-8").resized(pp)
    assert predict_seconds(made, machine) > predict_seconds(step, machine)


def test_a_stack_is_a_setting_of_a_job():
    job = job_of("gpt2", 8, {**SETTINGS, "stack": "eager"})
    assert job.settings["stack"] == "eager"
    plain = job_of("gpt2", 8, SETTINGS)
    assert job.graph() == stack_named("eager").applied(plain.graph())


def test_unknown_stacks_and_keys_are_named():
    with pytest.raises(UnknownNameError, match="eagre"):
        job_of("gpt2", 8, {"stack": "eagre"})
    with pytest.raises(FormatError, match="passses"):
        _read("mine", {"passses": 2.0})


def test_a_host_works_between_steps_once_the_last_kernel_has_ended(step):
    made = Stack("logs", between_steps=0.01).applied(step)
    check(made)
    longer = predict_seconds(made, H100) - predict_seconds(step, H100)
    assert longer == pytest.approx(0.01, rel=0.01)


def test_the_head_is_scaled_apart_from_other_products(step):
    made = Stack("head", head=2.0).applied(step)
    scaled = {op.name for op in made.ops() if op.cost is not None and op.cost.scale == 2.0}
    assert {"head", "head weight gradient", "loss", "loss backward"} <= scaled
    assert "up" not in scaled


@pytest.mark.parametrize("name", ["compile", "deepspeed", "eager", "megatron", "mlperf"])
def test_stacks_have_the_names_that_people_use(name):
    assert name in stack_names()


def test_products_of_a_throttled_machine_take_longer():
    job = job_of("gpt2", 8, SETTINGS)
    throttled = replace(job, products=1.5)
    scales = {op.cost.scale for op in kernels(throttled.graph(), "gemm")}
    assert scales == {1.5}
    assert job.software is None


def _width(stack: Stack, step: Any, machine: Any = H100) -> float:
    found = predict(stack.applied(step), machine, stack=stack)
    assert found.low <= found.seconds <= found.high
    return found.high / found.low


def test_ranges_are_the_wider_the_further_steps_of_a_stack_were_off(step):
    usual = range_term("hosts", "none")
    names = [name for name in stack_names() if range_term("hosts", name) == usual]
    terms = {name: range_term("stacks", name).up for name in names}
    least, most = min(names, key=terms.__getitem__), max(names, key=terms.__getitem__)
    assert terms[least] < terms[most]
    assert _width(Stack(least), step) < _width(Stack(most), step)


def test_a_job_has_the_range_of_its_stack():
    job = job_of("dlrm", 8, {"stack": "hugectr"})
    found, usual = predict_job(job, H100, anyway=True), predict(job.graph(), H100, anyway=True)
    assert found.seconds == usual.seconds
    known, unknown = (range_term("stacks", name).up for name in ("hugectr", "none"))
    assert known != unknown
    assert (found.high < usual.high) == (known < unknown)


def test_autograd_and_collectives_have_a_host_of_their_own_and_recomputed_ops_the_usual():
    settings = {"layers": "2", "tp": "2", "dp": "1", "recompute": "full", "flash": "false"}
    step = job_of("gpt2", 2, settings).graph()
    made = Stack("python", host=4.0, host_native=1.0).applied(step)
    usual = 20.7e-6  # HostModel: gap, before, after
    hosts: dict[tuple[str, bool, bool], set[float]] = {}
    for op in made.ops():
        key = op.phase, op.recomputed, op.kind == "collective"
        assert op.host is not None
        hosts.setdefault(key, set()).add(round(op.host / usual, 6))
    assert hosts["forward", False, False] == hosts["backward", True, False] == {4.0}
    assert hosts["backward", False, False] == hosts["forward", False, True] == {1.0}
    assert hosts["backward", True, True] == hosts["backward", False, True] == {1.0}


@pytest.mark.parametrize(
    ("recompute", "again"),
    [
        ("none", set()),
        ("selective", {"scores", "softmax", "dropout", "values", "mask"}),
        ("full", None),
    ],
)
def test_ops_that_are_computed_again_are_marked(recompute, again):
    settings = {"layers": "2", "recompute": recompute, "flash": "false"}
    ops = list(job_of("gpt2", 1, settings).graph().ops())
    marked = [op.name for op in ops if op.recomputed]
    assert all(op.phase == "backward" for op in ops if op.recomputed)
    if again is None:  # every op of the layers' forward passes
        forward = [op.name for op in ops if op.phase == "forward"]
        first, last = forward.index("embedding"), forward.index("head")
        assert sorted(marked) == sorted(forward[first + 1 : last - 1])
    else:
        assert set(marked) == again
