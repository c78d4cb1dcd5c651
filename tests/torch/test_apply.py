"""A torch job does what a plan says, tells which way it went, and leaves a plan that is wrong."""

import pytest
import torch

import weft.torch
from tests.torch import apply_cases as cases
from tests.torch.ranks import on_ranks
from weft.errors import UsageError
from weft.torch.apply.step_watch import PlanWarning, StepWatch

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
BACK = (
    "10 steps by plan took 3 s each, the plan says 0 s to 1.5 s, and 2 s by default: "
    "going back to the default (torch with Gloo)"
)
OTHER = (
    "the plan has buckets of 32 KiB, this DDP has 25 MiB: create it with applied.ddp(module), "
    "after apply"
)
ranked = pytest.mark.multiprocess


@ranked
def test_every_collective_is_executed_by_plan_with_the_same_result():
    for values, ways, after, report in on_ranks(cases.every_collective, 2):
        assert values[:3] == [3.0] * 3
        assert values[3:] in ([100.0, 109.0, 40.0, 1.0], [100.0, 119.0, 40.0, 1.0])
        assert [way[2] for way in ways] == [
            *("weft: ring", "gloo", "gloo", "gloo", "gloo", "gloo"),
            "weft: staged",
        ]
        assert all(way[3:] == (1, 0) for way in ways)
        assert ways[-1][:2] == ("all_reduce", 12000)
        assert after == 2.0
        assert "not in the plan: default algorithm" in report
        assert "planned 1 s a step" in report.splitlines()[0]


@ranked
def test_equal_collectives_are_distinguished_by_their_order_in_a_step():
    for ways in on_ranks(cases.occurrences, 2):
        assert ways == [
            ("all_reduce", 400, "weft: ring", 6, 0),
            ("all_reduce", 400, "gloo", 2, 0),
        ]


@ranked
@pytest.mark.parametrize("rule", [None, weft.torch.SGD(0.1), weft.torch.RowwiseAdagrad(0.1)])
def test_a_fused_module_takes_the_place_of_the_plain_one_and_learns_alike(rule):
    for plain, fused, kind, ways in on_ranks(cases.fused_training, 2, rule):
        assert fused == pytest.approx(plain, rel=1e-5)
        assert plain[0] != plain[-1]
        assert kind == "EmbeddingAllToAll"
        assert ways[0][2:] == ("fused: EmbeddingAllToAll", 0, 0)


@ranked
def test_a_step_that_contradicts_the_plan_sends_the_job_back_with_its_numbers():
    for said, kinds, state, ways in on_ranks(cases.contradicted, 2, True):
        assert said == [
            BACK,
            "the default took 2 s, the plan 3 s: staying with the default",
        ]
        assert kinds[:13] == ["EmbeddingAllToAll"] * 12 + ["EmbeddingBags"]
        assert (kinds[-1], state) == ("EmbeddingBags", "default")
        assert sum(way[4] for way in ways) == 2 * (40 - 13)


@ranked
def test_a_plan_that_is_wrong_about_time_and_still_faster_is_taken_up_again():
    for said, kinds, state, _ in on_ranks(cases.contradicted, 2, False):
        assert said[-1].endswith("its prediction was wrong, its choice is not")
        assert (kinds[20], kinds[-1], state) == ("EmbeddingBags", "EmbeddingAllToAll", "plan")


@ranked
def test_a_plan_for_something_else_is_refused():
    for complaints in on_ranks(cases.refusals, 2):
        wanted = (
            "4 ranks (got 2)",
            "made for cpu (this machine is mi300x-8)",
            "all_reduce 4 uses backend 'nccl'",
            "all_reduce 4 uses codec bf16",
            "(bf16 and pack)",
        )
        for complaint, text in zip(complaints, wanted, strict=True):
            assert text in complaint


@ranked
def test_a_plan_for_gpus_is_refused_without_gpus_and_changes_nothing():
    for complaints, unchanged, hint in on_ranks(cases.refuse_gpus, 2):
        assert len(complaints) == 4
        for complaint in complaints:
            assert "made for 2 GPUs of mi300x-8; on rank 0 this process sees no GPU" in complaint
        assert unchanged
        assert "--on here" in hint


@ranked
def test_a_plan_none_of_whose_collectives_comes_is_refused_after_two_steps():
    for complaint in on_ranks(cases.another_job, 2):
        assert "none of the 1 collectives of job was called" in complaint
        assert "all_reduce of 400 bytes" in complaint


@ranked
def test_ddp_is_made_with_the_buckets_of_the_plan():
    for ways, cap, said in on_ranks(cases.buckets, 2):
        assert cap == 32768
        reduced = [way for way in ways if way[0] == "all_reduce"]
        assert {way[2] for way in reduced} == {"gloo"}
        assert ("all_reduce", 32768, "gloo", 6, 0) in reduced  # of three in each later step
        assert said == [OTHER]


def test_a_watch_needs_no_ranks_and_leaves_a_plan_alone_that_is_right():
    switched: list[bool] = []
    watch = StepWatch(cases.plan_of(), float, switched.append, warm=1, window=2)
    for _ in range(9):
        watch.note(1.2)
    assert switched == []
    assert [verdict.seconds for verdict in watch.verdicts] == [1.2] * 4
    assert watch.planned == 1.2


def test_a_plan_that_equals_the_default_has_no_fallback():
    switched: list[bool] = []
    watch = StepWatch(cases.plan_of(), float, switched.append, differs=False, warm=0, window=1)
    with pytest.warns(PlanWarning, match="there is no fallback"):
        watch.note(3.0)
    watch.note(3.0)
    assert switched == []


def test_a_step_no_faster_than_the_predicted_default_contradicts_the_plan():
    watch = StepWatch(cases.plan_of(high=9.0), float, lambda _: None, warm=0, window=1)
    assert watch.contradicts(2.1)
    assert not watch.contradicts(1.9)
    with pytest.warns(PlanWarning, match="took 2.1 s each"):
        watch.note(2.1)


@ranked
def test_holders_out_of_order_are_refused():
    for complaint in on_ranks(_wrong_holders, 2):
        assert complaint == "holders: expected 2 ranks in rising order (got [1, 0])."


def _wrong_holders() -> str:
    try:
        weft.torch.EmbeddingBags([torch.zeros(2, 2)] * 2, holders=[1, 0])
    except UsageError as error:
        return str(error)
    return ""
