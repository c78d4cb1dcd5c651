"""Generated steps: every kernel waits for what it receives, whatever the options."""

from collections import Counter

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from weft.hardware import platform
from weft.models.named import generate
from weft.step import NO_HOST, StepEngine, check

pytestmark = pytest.mark.thorough

KERNEL, COLLECTIVE = 1e-3, 1e-6  # seconds of each, so that a bound is a count of kernels


class CountedPrices:
    """Every kernel takes the same time and collectives next to none."""

    def kernel(self, _cost):
        return KERNEL

    def collective(self, _what, _ranks):
        return COLLECTIVE


def pipeline_bound(graph, num_micro, chunks):
    """Return the least seconds of a pipelined step of which every stage waits for its inputs.

    A stage starts when the first micro batch has passed the first chunk of every stage before
    it, carries out all of its own work, and its last backward pass has those stages' behind it.
    For equal stages that is (num_micro + pp - 1) times a stage, and with chunks a bubble of
    (pp - 1) / chunks stages (arXiv 2104.04473).
    """
    count = [Counter(op.phase for op in step.ops if op.kind == "kernel") for step in graph.steps]
    bounds = []
    for stage, own in enumerate(count):
        fill = sum(before["forward"] / num_micro / chunks for before in count[:stage])
        drain = sum(before["backward"] / num_micro / chunks for before in count[:stage])
        if not own["backward"]:  # serving: what is behind a stage follows its last micro batch
            drain = sum(behind["forward"] / num_micro for behind in count[stage + 1 :])
        bounds.append(fill + own["forward"] + own["backward"] + drain)
    return KERNEL * max(bounds)


def step_seconds(graph):
    machine = platform("h100-8", num_ranks=8)
    return StepEngine(graph, machine, CountedPrices(), host=NO_HOST).run(pressure=0).seconds


OPTIONS = st.fixed_dictionaries(
    {
        "fsdp": st.booleans(),
        "recompute": st.booleans(),
        "dropout": st.booleans(),
        "clip": st.booleans(),
        "frozen": st.booleans(),
        "tp": st.sampled_from((1, 2)),
        "mode": st.sampled_from(("train", "train", "prefill")),
    }
)
PLAIN = dict.fromkeys(("recompute", "dropout", "clip", "frozen"), False)


def made(model, options, *, pp, dp, num_micro, chunks=1, ep=1):
    settings = {
        **options,
        "pp": pp,
        "ep": ep,
        "layers": 2 * pp * chunks,
        "batch": dp * num_micro,
        "micro_batch": 1,
        "interleave": chunks if options["mode"] == "train" else 1,
    }
    given = {key: str(value) for key, value in settings.items()}
    return generate(model, options["tp"] * pp * dp, given)


@given(
    options=OPTIONS,
    model=st.sampled_from(("gpt2", "mixtral-8x7b")),
    pp=st.sampled_from((2, 3, 4)),
    dp=st.sampled_from((1, 2)),
    turns=st.sampled_from((1, 2)),
    chunks=st.sampled_from((1, 2)),
)
@example({**PLAIN, "fsdp": True, "tp": 1, "mode": "train"}, "gpt2", 4, 2, 2, 1)
@settings(max_examples=60, deadline=None)
def test_no_pipeline_is_faster_than_its_critical_path(options, model, pp, dp, turns, chunks):
    if options["mode"] != "train":
        chunks = 1
    num_micro = turns * pp
    ep = dp if model == "mixtral-8x7b" else 1
    graph = made(model, options, pp=pp, dp=dp, num_micro=num_micro, chunks=chunks, ep=ep)
    assert step_seconds(graph) >= pipeline_bound(graph, num_micro, chunks) * (1 - 1e-9)


SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb", "dualpipe")


@given(
    schedule=st.sampled_from(SCHEDULES),
    model=st.sampled_from(("gpt2", "deepseek-v2-lite")),
    pp=st.sampled_from((2, 4)),
    tp=st.sampled_from((1, 2)),
    turns=st.sampled_from((2, 3)),
    others=st.fixed_dictionaries(
        {
            "recompute": st.sampled_from(("none", "selective", "full")),
            "mtp": st.sampled_from((0, 1)),
            "ep_overlap": st.booleans(),
        }
    ),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_stages_without_layers_let_every_schedule_go_on(
    schedule, model, pp, tp, turns, others, data
):
    """A chunk may be the embedding alone, the head alone, or nothing."""
    chunks = 2 if schedule == "interleaved" else 1
    layers = st.lists(st.sampled_from((0, 0, 1, 2)), min_size=pp * chunks, max_size=pp * chunks)
    counts = data.draw(layers.filter(any))
    has_experts = model == "deepseek-v2-lite"
    assume(not (has_experts and others["ep_overlap"] and schedule in ("gpipe", "zb")))
    given = {
        **others,
        "schedule": "1f1b" if schedule == "interleaved" else schedule,
        "interleave": chunks,
        "stage_layers": "-".join(map(str, counts)),
        "layers": sum(counts),
        "pp": pp,
        "tp": tp,
        "sp": tp > 1,
        "ep": 2 if has_experts else 1,
        "etp": 1 if has_experts else 0,
        "batch": 2 * turns * pp,
        "micro_batch": 1,
    }
    graph = generate(model, 2 * tp * pp, {key: str(value) for key, value in given.items()})
    check(graph)
    took = StepEngine(
        graph, platform("h100-8").cluster(2).resized(2 * tp * pp), CountedPrices(), host=NO_HOST
    ).run(pressure=0)
    kernels = [sum(op.kind == "kernel" for op in step.ops) for step in graph.steps]
    others = sum(op.kind != "kernel" for op in graph.ops())
    assert KERNEL * max(kernels) <= took.seconds * (1 + 1e-9)
    # never longer than if the stages took turns
    assert took.seconds <= (KERNEL * sum(kernels) + 2 * COLLECTIVE * others) * (1 + 1e-9)


@pytest.mark.parametrize(
    "layout", [{"ep_overlap": "true", "interleave": "2"}, {"schedule": "dualpipe"}]
)
def test_passes_that_overlap_do_not_wait_for_each_other(layout):
    """With sequence parallelism a pass of shared experts starts with a collective."""
    sharing = {"tp": "2", "sp": "true", "pp": "4", "ep": "2", "etp": "1"}
    given = {"layers": "8", "batch": "32", "micro_batch": "1", **sharing, **layout}
    graph = generate("deepseek-v2-lite", 16, given)
    check(graph)
    StepEngine(graph, platform("h100-8").cluster(2), CountedPrices(), host=NO_HOST).run()


@pytest.mark.parametrize("recompute", [False, True])
def test_sharded_weights_leave_the_bubble_where_it_is(recompute):
    options = {**PLAIN, "recompute": recompute, "tp": 1, "mode": "train"}
    plain, shared = (
        step_seconds(made("gpt2", {**options, "fsdp": fsdp}, pp=4, dp=2, num_micro=4))
        for fsdp in (False, True)
    )
    assert shared == pytest.approx(plain, rel=0.01)


def results_nobody_waits_for(step):
    """List the collectives whose result nothing waits for.

    Sums of gradients follow each other on a stream; the last of them stands for all.
    """
    waited_for = {n for op in step.ops for n in op.after}
    unread = []
    for number, op in enumerate(step.ops):
        if op.kind != "collective" or op.collective.kind == "send" or number in waited_for:
            continue
        later = {n for n in waited_for if n > number and step.ops[n].stream == op.stream}
        if not (op.collective.group in ("dp", "edp") and later):
            unread.append((number, op.name, op.stream))
    return unread


@given(
    options=OPTIONS,
    model=st.sampled_from(("gpt2", "mixtral-8x7b")),
    pp=st.sampled_from((1, 2, 3)),
    dp=st.sampled_from((1, 2)),
)
@example({**PLAIN, "fsdp": False, "tp": 1, "mode": "train"}, "gpt2", 2, 2)
@settings(max_examples=40, deadline=None)
def test_something_waits_for_the_result_of_every_collective(options, model, pp, dp):
    ep = dp if model == "mixtral-8x7b" else 1
    graph = made(model, options, pp=pp, dp=dp, num_micro=2, ep=ep)
    assert [results_nobody_waits_for(step) for step in graph.steps] == [[]] * pp


@pytest.mark.parametrize("fsdp", [False, True])
@pytest.mark.parametrize("pp", [1, 2])
def test_the_optimizer_and_the_gradient_norm_wait_for_reduced_gradients(pp, fsdp):
    options = {**PLAIN, "clip": True, "fsdp": fsdp, "tp": 1, "mode": "train"}
    for step in made("gpt2", options, pp=pp, dp=2, num_micro=2).steps:
        kinds = ("all_reduce", "reduce_scatter")
        reduced = [n for n, op in enumerate(step.ops) if op.collective and op.name in kinds]
        norm = next(op for op in step.ops if op.name == "gradient norm")
        assert reduced[-1] in norm.after


def test_dropout_follows_the_sum_that_it_drops_from():
    options = {**PLAIN, "dropout": True, "fsdp": False, "tp": 2, "mode": "train"}
    (step,) = made("gpt2", options, pp=1, dp=1, num_micro=1).steps
    dropped = [op for op in step.ops if op.name == "dropout"]
    assert len(dropped) == 2 * 2  # behind attention and behind the MLP of two layers
    for op in dropped:
        assert [step.ops[n].name for n in op.after] == ["all_reduce"]
