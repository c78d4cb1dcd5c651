"""A plan is never slower than none, says what it is for, and refuses anything else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import FormatError, NoPlanError, PlanError, UnknownNameError, UsageError
from weft.hardware import platform
from weft.hardware.libraries import Errors, Fit, Library
from weft.models.building import Ops
from weft.models.named import generate
from weft.planner.plan import Limits, Plan, fingerprint, read_plan
from weft.planner.planning import MODES, plan
from weft.planner.spreading import spread
from weft.schedule import Cost
from weft.schedule.strategy import STRATEGIES
from weft.step import NO_HOST, Collective, Op, RankStep, StepGraph

DATA = Path(__file__).parents[1] / "data"
H100, MI300X = platform("h100-8"), platform("mi300x-8")
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@pytest.fixture(scope="module")
def gpt2():
    return generate("gpt2", 8, {"layers": "3"})


@pytest.fixture(scope="module")
def made(gpt2):
    return plan(gpt2, H100)


@pytest.mark.parametrize("settings", [{}, {"math": "fp8"}, {"dtype": "fp8"}])
def test_products_of_any_dtype_can_send_slices_of_what_they_write(settings):
    given = {"batch": "1", "tp": "8", "layers": "1", "mode": "prefill", **settings}
    step = generate("llama-8b", 8, given)
    found = plan(step, H100, limits=Limits(hypothetical=True))
    sums = [each for each in found.choices if each.collective.group == "tp"]
    assert sums
    for choice in sums:
        assert choice.strategy.name == "fused" or not next(
            each.refused for each in choice.alternatives if each.strategy.name == "fused"
        )


@st.composite
def steps(draw):
    """Draw a few products and collectives; some wait for each other."""
    ops = Ops("bf16", phase="backward")
    for _ in range(draw(st.integers(1, 4))):
        sides = [draw(st.sampled_from((64, 1024, 4096, 8192))) for _ in range(3)]
        before = draw(st.integers(-1, ops.last))
        done = ops.gemm("product", *sides, after=before)
        if draw(st.booleans()):
            kind = draw(st.sampled_from(KINDS))
            ops.collective(kind, draw(st.integers(1, 64)) << 20, after=done)
    return StepGraph("drawn", 8, (RankStep(tuple(range(8)), tuple(ops.ops)),))


@settings(deadline=None, max_examples=25)
@given(steps(), st.sampled_from((H100, MI300X)), st.sampled_from(MODES))
def test_a_plan_is_never_slower_than_none_and_comes_back_from_its_file(step, machine, mode):
    found = plan(step, machine, mode=mode, host=NO_HOST)
    assert found.planned <= found.baseline * (1 + 1e-9)
    assert found.low <= found.planned <= found.high
    assert all(each.strategy.name in STRATEGIES and each.why for each in found.choices)
    assert all(each.why for choice in found.choices for each in choice.alternatives)
    assert Plan.from_json(found.to_json()) == found
    found.check_for(step, machine)


def test_every_collective_has_one_choice(made, gpt2):
    places = [op for choice in made.choices for op in choice.ops]
    ops = gpt2.steps[0].ops
    assert sorted(places) == [n for n, op in enumerate(ops) if op.collective is not None]


def test_every_strategy_is_chosen_or_said_why_not(made):
    for choice in made.choices:
        told = {choice.strategy.name, *(each.strategy.name for each in choice.alternatives)}
        assert told == set(STRATEGIES)


def test_a_plan_for_another_workload_is_refused(made, gpt2):
    with pytest.raises(PlanError, match="its ops differ"):
        made.check_for(generate("gpt2", 8, {"layers": "2"}), H100)
    with pytest.raises(PlanError, match="for workload gpt2, not for bert-base"):
        made.check_for(generate("bert-base", 8, {"layers": "3"}), H100)
    with pytest.raises(PlanError, match="8 ranks, not 4"):
        made.check_for(generate("gpt2", 4, {"layers": "3"}), H100)
    assert made.check_for(gpt2, H100) is None


def test_a_plan_for_another_platform_is_refused(made, gpt2):
    with pytest.raises(PlanError, match="h100-8, not for mi300x-8"):
        made.check_for(gpt2, MI300X)
    changed = replace(H100, levels=tuple(replace(each, kind="ring") for each in H100.levels))
    with pytest.raises(PlanError, match="its device or network differs"):
        made.check_for(gpt2, changed)


def test_a_machine_calibrated_again_is_the_same(gpt2):
    faster = replace(H100, levels=tuple(replace(each, rate=1e12) for each in H100.levels))
    assert fingerprint(gpt2, H100) == fingerprint(gpt2, faster)


def test_a_file_of_another_version_or_kind_is_refused(made, tmp_path):
    text = json.loads(made.to_json())
    with pytest.raises(FormatError, match="of version 99, known is 1"):
        Plan.from_json(json.dumps(text | {"weft_plan": 99}))
    with pytest.raises(FormatError, match="not a plan file"):
        Plan.from_json(b"{}")
    with pytest.raises(FormatError, match="cannot read"):
        read_plan(tmp_path / "none.json")
    text["plan"]["choices"][0]["strategy"] = "prority"
    (tmp_path / "plan.json").write_text(json.dumps(text))
    with pytest.raises(UnknownNameError, match="unknown strategy 'prority'") as told:
        read_plan(tmp_path / "plan.json")
    assert "priority" in told.value.hint


def test_wrong_limits_and_modes_are_refused(gpt2):
    with pytest.raises(NoPlanError, match="a plan may use 1 GiB"):
        plan(gpt2, H100, limits=Limits(memory=1 << 30))
    with pytest.raises(UsageError, match=r"--budget must be >= 0"):
        plan(gpt2, H100, limits=Limits(error=-1))
    with pytest.raises(UsageError, match=r"--engines must be >= 0"):
        plan(gpt2, H100, limits=Limits(engines=-1))
    with pytest.raises(UnknownNameError, match="error of codec 'zip'"):
        plan(gpt2, H100, limits=Limits(codecs=("zip",)))
    with pytest.raises(UsageError, match="unknown mode 'quick'"):
        plan(gpt2, H100, mode="quick")


def gathers(nbytes=256 << 20):
    """Make a step that a large all-gather decides."""
    ops = Ops("bf16")
    got = ops.collective("all_gather", nbytes)
    ops.gemm("small", 64, 1024, 1024, after=got)
    return StepGraph("gathers", 8, (RankStep(tuple(range(8)), tuple(ops.ops)),))


def codecs_of(found):
    return {
        str(each.strategy.codec): each.why
        for each in found.choices[0].alternatives
        if each.strategy.codec
    }


def test_a_codec_is_taken_only_within_the_budget():
    machine = platform("l40s-8-nop2p")  # slow links
    exact = plan(gathers(), machine, limits=Limits(hypothetical=True), host=NO_HOST)
    assert exact.choices[0].strategy.settings.get("codec", "pack") == "pack"
    assert "above the budget of 0" in codecs_of(exact)["int8"]
    limits = Limits(error=0.01, codecs=("int8",), hypothetical=True)
    lossy = plan(gathers(), machine, limits=limits, host=NO_HOST)
    assert lossy.choices[0].strategy.settings == {"codec": "int8"}
    assert lossy.planned < exact.planned


def test_engines_that_are_not_allowed_are_not_used():
    step = generate("llama-8b", 8, {"fsdp": "true", "recompute": "true", "layers": "2"})
    free = plan(step, MI300X)
    assert any(choice.strategy.name.startswith("dma") for choice in free.choices)
    bound = plan(step, MI300X, limits=Limits(engines=0))
    assert not any(choice.strategy.name.startswith("dma") for choice in bound.choices)
    told = [each.why for each in bound.choices[0].alternatives if each.strategy.name == "dma"]
    assert told == ["needs 7 engines, 0 are allowed"]


def test_larger_buckets_are_joined_and_their_ops_named():
    step = generate("bert-large", 8)
    found = plan(step, MI300X)
    joined = [choice for choice in found.choices if choice.strategy.bucket]
    assert joined
    assert sum(len(choice.ops) for choice in found.choices) == sum(
        op.collective is not None for op in step.steps[0].ops
    )
    assert max(choice.collective.nbytes for choice in joined) == joined[0].strategy.bucket


def curve(seconds_per_byte):
    """Make a library that takes 10 us and so much a byte for everything."""
    line = ((1.0, 1e-5), (1e9, 1e-5 + 1e9 * seconds_per_byte))
    errors = Errors(0, 0.0, 0.0, 1.0)
    return tuple(
        Fit("1", kind, "any", (2,), line, (), (), 0, errors)
        for kind in ("all_reduce", "all_to_all")
    )


@pytest.fixture(scope="module")
def cores():
    libraries = tuple(
        Library(name, "cpu", "fitted", "made up", "cpu", 1, 1 << 40, curve(rate))
        for name, rate in (("gloo", 4e-9), ("weft", 1e-9))
    )
    return replace(platform("cpu"), libraries=libraries)


def test_on_cores_the_faster_backend_is_taken_and_lookups_are_fused(cores):
    step = generate("dlrm", 2, {"batch": "512"})
    found = plan(step, cores)
    assert found.planned < found.baseline
    assert all(choice.strategy.backend == "weft" for choice in found.choices if choice.gain)
    refused = {each.strategy.name for choice in found.choices for each in choice.alternatives}
    assert {"partition", "dma", "compressed"} <= refused
    assert not found.notes


def test_without_calibration_a_plan_on_cores_says_so():
    found = plan(generate("dlrm", 2), platform("cpu"))
    assert "was not calibrated" in found.notes[0]
    assert found.planned == found.baseline


def test_a_named_model_is_spread_until_it_fits():
    graph, added = spread("llama-70b", platform("mi300x-8x128"))
    assert graph.num_ranks == 1024
    assert added == {"batch": "1024", "fsdp": "true", "recompute": "true"}
    _, kept = spread("gpt2", H100)
    assert kept == {}
    _, added = spread("llama-70b", platform("mi300x-8x128"), {"tp": "8"})
    assert added["batch"] == "128"


def test_what_never_fits_or_is_no_name_is_refused_as_it_stands(tmp_path):
    with pytest.raises(UsageError, match="do not divide among tp 3"):
        spread("gpt2", platform("h100-8").resized(3), {"tp": "3", "heads": "13", "batch": "8"})
    with pytest.raises(NoPlanError):
        spread("llama-405b", platform("h100-8").resized(2))


def test_plans_of_the_first_version_still_fit_their_steps():
    """The fingerprint that the first version of the format wrote for the same step."""
    product = Op("mm", cost=Cost("gemm", (8, 4, 2), "bf16", 128.0, 64))
    what = Collective("all_reduce", 64)
    summed = Op("sum", "collective", "comm", None, what, (0,), phase="backward")
    step = StepGraph("toy", 8, (RankStep(tuple(range(8)), (product, summed)),))
    assert fingerprint(step, platform("h100-8")) == "82b8863657ba4b01-7cb8c91e790956f6"


def test_plans_that_earlier_versions_wrote_still_load():
    found = read_plan(DATA / "plan-v1.json")
    assert found.workload == "gpt2"
    others = [each.strategy for each in found.choices[0].alternatives]
    assert next(each.engines for each in others if each.kind.by_engines) == 7
    assert Plan.from_json(found.to_json()) == found


def test_an_unknown_strategy_or_setting_of_a_plan_file_is_named():
    text = (DATA / "plan-v1.json").read_text()
    with pytest.raises(UnknownNameError, match="'dmaa'"):
        Plan.from_json(text.replace('"strategy": "dma"', '"strategy": "dmaa"', 1))
    with pytest.raises(FormatError, match="unknown setting 'motors'"):
        Plan.from_json(text.replace('"engines": 7', '"motors": 7', 1))
