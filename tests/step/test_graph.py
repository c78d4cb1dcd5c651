"""What a workload may say, and that it is read as it was written."""

import dataclasses
from math import inf, nan
from typing import Any, cast

import pytest

from weft.errors import FormatError, WorkloadError
from weft.schedule import Cost, Group
from weft.step import Collective, Memory, Op, RankStep, StepGraph, Unsupported, check
from weft.step.matching import match_collectives

GATHER = Op(
    "gather", "collective", "comm", collective=Collective("all_gather", 64, group="tp"), after=(0,)
)
GEMM = Op("mm", cost=Cost("gemm", (8, 8, 8), "bf16", 1024.0, 384), phase="forward")
WHOLE = StepGraph(
    "whole",
    4,
    (RankStep((0, 1, 2, 3), (GEMM, GATHER)),),
    {"tp": Group(2), "dp": Group(2, 2)},
    Memory(1, 2, 3, 4, 5),
    (Unsupported("nonzero", 1, 8, "its shape depends on data"),),
    "made by hand",
)


def with_ops(*ops):
    return dataclasses.replace(WHOLE, steps=(RankStep((0, 1, 2, 3), ops),))


def test_a_workload_is_read_as_it_was_written():
    assert StepGraph.from_json(WHOLE.to_json()) == WHOLE


def test_groups_are_by_position():
    assert WHOLE.members("tp", 3) == (2, 3)
    assert WHOLE.members("dp", 3) == (1, 3)
    assert WHOLE.members("world", 1) == (0, 1, 2, 3)


@pytest.mark.parametrize("wrong", [(0, 4), (-1, 3), (0, 0)])
def test_a_listed_group_may_hold_every_rank_and_no_other(wrong):
    check(dataclasses.replace(WHOLE, groups={**WHOLE.groups, "ends": Group(2, 1, (0, 3))}))
    with pytest.raises(WorkloadError, match="group 'ends'"):
        check(dataclasses.replace(WHOLE, groups={**WHOLE.groups, "ends": Group(2, 1, wrong)}))


def test_an_uneven_exchange_counts_as_the_even_one_of_its_busiest_rank():
    """Ranks 0 and 1 send 4 bytes to rank 2 and 1 to each other; ranks 2 and 3 send 1 to each."""

    def exchange(*splits):
        return (
            Op("x", "collective", collective=Collective("all_to_all", sum(splits), splits=splits)),
        )

    steps = (RankStep((0, 1), exchange(1, 1, 4, 0)), RankStep((2, 3), exchange(1, 1, 1, 1)))
    found = match_collectives(StepGraph("uneven", 4, steps), 8)
    # Rank 2 receives 4 + 4 + 1 bytes; an even exchange in which each moves 9 has 12 in all.
    assert {matched.what.nbytes for matched in found.values()} == {12}


def test_memory_adds_up():
    assert WHOLE.memory is not None
    assert WHOLE.memory.total == 15


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dataclasses.replace(WHOLE, num_ranks=5), "each rank needs one"),
        (with_ops(dataclasses.replace(GEMM, kind=cast("Any", "magic"))), "of kind 'magic'"),
        (with_ops(dataclasses.replace(GEMM, after=(0,))), "only ops before it"),
        (with_ops(dataclasses.replace(GEMM, seconds=-1.0)), r"seconds must be .* \(got -1.0\)"),
        (with_ops(dataclasses.replace(GEMM, kind="collective")), "does not say which"),
        (with_ops(Op("x", "collective", collective=Collective("all", 1))), "is a 'all'"),
        (with_ops(Op("x", "collective", collective=Collective("send", 1))), "which position"),
        (
            with_ops(Op("x", "collective", collective=Collective("barrier", -1))),
            r"bytes must be >= 0 \(got -1\)",
        ),
        (
            with_ops(
                Op("x", "collective", collective=Collective("all_to_all", 4, splits=(5, -1, 0, 0)))
            ),
            r"bytes must be >= 0 \(got -1\)",
        ),
        (
            with_ops(Op("x", "collective", collective=Collective("barrier", 0, group="pp"))),
            "of group 'pp'",
        ),
        (dataclasses.replace(WHOLE, steps=(*WHOLE.steps, RankStep((), (GEMM,)))), "for no rank"),
        (StepGraph("none", 0, ()), r"num_ranks must be >= 1 \(got 0\)"),
        (with_ops(dataclasses.replace(GEMM, host=inf)), r"host must be .* \(got inf"),
        (with_ops(dataclasses.replace(GEMM, collective=Collective("barrier", 0))), "kind 'kernel'"),
        *(
            (
                with_ops(
                    Op(
                        "x",
                        cost=dataclasses.replace(Cost(), **cast("dict[str, Any]", {name: value})),
                    )
                ),
                rf"{name} of its cost .* \(got {value}",
            )
            for name in ("flops", "nbytes", "tiles", "seconds", "scale")
            for value in (-5, nan)
        ),
        *(
            (with_ops(Op("x", "collective", collective=what)), message)
            for what, message in (
                (Collective("broadcast", 1, peer=4), r"0 to 3 \(got 4\)"),
                (Collective("broadcast", 1, group="tp", peer=-1), r"0 to 1 \(got -1\)"),
                (Collective("all_to_all", 1, copies=-1), r"copies must be >= 0 \(got -1\)"),
                (Collective("all_reduce", 4, splits=(1, 1, 1, 1)), "with splits"),
            )
        ),
        *(
            (dataclasses.replace(WHOLE, groups={"tp": group}), "the workload has 4")
            for group in (
                *(Group(0), Group(-2), Group(5), Group(10**9), Group(2, 0), Group(2, 10**9)),
                *(Group(3, 2), Group(2, 1, (0, 4)), Group(2, 1, (1, 1)), Group(3, 1, (0, 1))),
            )
        ),
    ],
)
def test_what_means_nothing_is_refused(wrong, message):
    with pytest.raises(WorkloadError, match=message):
        check(wrong)


@pytest.mark.parametrize("group", [Group(3), Group(2, 1, (0, 1))])
def test_a_rank_that_no_group_holds_has_nobody_to_meet(group):
    left = (RankStep((0, 1, 2), (GEMM,)), RankStep((3,), (GEMM, GATHER)))
    with pytest.raises(WorkloadError, match="rank 3 of whole is in no group of tp"):
        match_collectives(dataclasses.replace(WHOLE, steps=left, groups={"tp": group}), 8)


@pytest.mark.parametrize(
    ("group", "what", "ranks"),
    [
        (Group(3), GATHER, (6, 7, 8)),
        (Group(8), GATHER, tuple(range(8))),
        (
            Group(24),
            Op("send", "collective", collective=Collective("send", 8, group="tp", peer=1)),
            (23, 0),
        ),
        (Group(2, 1, (0, 23)), GATHER, (0, 23)),
    ],
)
def test_the_group_that_spans_most_nodes_stands_for_its_class(group, what, ranks):
    listed = group.ranks or range(24)
    rest = tuple(rank for rank in range(24) if rank not in listed)
    steps = (RankStep(tuple(listed), (what,)), *((RankStep(rest, (GEMM,)),) if rest else ()))
    graph = StepGraph("nodes", 24, steps, {"tp": group})
    assert match_collectives(graph, 8)[0, 0].ranks == ranks


def test_left_over_ranks_of_a_class_do_not_stand_for_it():
    send = Op("send", "collective", collective=Collective("send", 8, group="tp", peer=1))
    graph = StepGraph("left", 10, (RankStep(tuple(range(10)), (send,)),), {"tp": Group(4)})
    assert match_collectives(graph, 9)[0, 0].ranks == (0, 1)


@pytest.mark.parametrize("text", ["{", '{"weft_workload": 1}'])
def test_what_is_no_workload_is_refused(text):
    with pytest.raises(FormatError, match="not a workload file"):
        StepGraph.from_json(text)


def test_a_newer_file_is_refused():
    text = WHOLE.to_json().replace(b'"weft_workload":1', b'"weft_workload":9')
    with pytest.raises(FormatError, match="version 9"):
        StepGraph.from_json(text)
