"""Each collective of a step with what overlaps it, what produces it and what looks it up."""

from __future__ import annotations

import pytest

from tests.planner.toy import evaluator_of, kernel, moves, step_of
from weft.planner.groups import groups_of
from weft.schedule import Cost
from weft.schedule.values import Group
from weft.step import Collective, RankStep, StepGraph

PRODUCT = Cost("gemm", (100, 50, 10), "fp32", flops=1e15, nbytes=1)  # makes 20,000 bytes
MOVER = Cost("elementwise", (), "fp32", nbytes=1 << 20)
MADE = Collective("all_reduce", 100 * 50 * 4, "fp32")


def groups(*ops, ranks=2, **more):
    return groups_of(evaluator_of(step_of(*ops, ranks=ranks, **more)))


def group(*ops, **more):
    (found,) = groups(*ops, **more)
    return found


# Which collectives are one pair.


def test_equal_collectives_are_one_pair_and_others_are_others():
    small, large = Collective("all_gather", 8), Collective("all_gather", 16)
    found = groups(moves(1, what=small), moves(1, what=large), moves(1, what=small))
    assert [(each.what, each.members) for each in found] == [
        (small, ((0, 0), (0, 2))),
        (large, ((0, 1),)),
    ]


def test_collectives_of_two_phases_are_two_pairs():
    found = groups(moves(1, phase="forward"), moves(1, phase="backward"), moves(1, phase="forward"))
    assert [(each.phase, len(each.members)) for each in found] == [("forward", 2), ("backward", 1)]


def test_collectives_that_other_products_make_are_other_pairs():
    found = groups(
        kernel("up", 3, cost=PRODUCT),
        moves(1, 0, what=MADE),
        kernel("down", 5, cost=PRODUCT),
        moves(1, 2, what=MADE),
        kernel("add", 5, cost=MOVER),
        moves(1, 4, what=MADE),
    )
    assert [(each.produced_by, each.producer_seconds, each.producers) for each in found] == [
        ("up", 3, ((0, 0),)),
        ("down", 5, ((0, 2),)),
        ("", 0, ()),
    ]


def test_a_rank_alone_has_no_pairs():
    alone = Collective("all_gather", 8, group="alone")
    assert groups(moves(1, what=alone), groups={"alone": Group(1)}) == ()
    both = group(moves(1, what=alone), groups={"alone": Group(2)}, ranks=4)
    assert both.ranks == (0, 1)


def test_uneven_exchanges_are_pairs_by_what_the_busiest_rank_moves():
    uneven = Collective("all_to_all", 40, "fp32", splits=(10, 30))
    found = group(moves(1, what=uneven))
    assert found.what.splits == ()
    assert found.what.nbytes == 2 * 30


# What overlaps it.


def test_hidden_is_the_share_of_its_time_that_kernels_run_next_to_on_the_average_of_all():
    ops = (moves(4), kernel("a", 1), kernel("wait", 1, 0), moves(4, 2), kernel("b", 3))
    assert group(*ops).hidden == pytest.approx((1 / 4 + 3 / 4) / 2, rel=0.13)  # they slow down
    assert group(moves(4)).hidden == 0
    assert group(moves(4, stream="compute"), kernel("a", 1), kernel("b", 3)).hidden == 0


def test_next_to_names_the_kernel_that_runs_there_longest_in_all():
    ops = (moves(9), kernel("a", 2), kernel("b", 3), kernel("a", 2))
    assert group(*ops).overlapped == "a"
    assert group(moves(9)).overlapped == ""


# What makes it.


@pytest.mark.parametrize(
    ("shape", "family", "dtype", "nbytes", "makes"),
    [
        ((100, 50, 10), "gemm", "fp32", 20_000, True),
        ((100, 50, 10), "gemm", "bf16", 10_000, True),
        ((100, 50, 10), "gemm", "odd", 20_000, True),  # four bytes, as most
        ((3, 100, 50, 10), "bmm", "fp32", 60_000, True),
        ((3, 100, 50, 10), "bmm", "fp32", 20_000, False),
        ((100, 50, 10), "gemm", "fp8", 10_000, True),  # products of narrow operands write bf16
        ((100, 50, 10), "gemm", "fp8", 5_000, False),
        ((100, 50, 10), "gemm", "float8_e4m3fn", 10_000, True),
        ((100, 50, 10), "gemm", "int8", 10_000, True),
        ((101, 1, 10), "gemm", "bf16", 200, True),  # one percent of padding
        ((102, 1, 10), "gemm", "bf16", 200, False),
        ((99, 1, 10), "gemm", "bf16", 200, True),
        ((98, 1, 10), "gemm", "bf16", 200, False),
        ((100, 50), "gemm", "fp32", 20_000, False),  # says too little
        ((100, 50, 10), "attention", "fp32", 20_000, False),
        ((1, 2, 3, 4), "embedding", "fp32", 12_345, True),  # lookups always do
    ],
)
def test_a_product_makes_a_collective_of_as_many_bytes(shape, family, dtype, nbytes, makes):
    made = Collective("all_reduce", nbytes, "fp32")
    found = group(kernel("maker", 7, cost=Cost(family, shape, dtype)), moves(1, 0, what=made))
    assert (found.producers, found.producer_seconds) == ((((0, 0),), 7) if makes else ((), 0))
    assert found.produced_by == ("maker" if makes else "")


def test_the_last_kernel_before_it_is_its_maker():
    ops = (kernel("first", 5, cost=MOVER), kernel("mm", 7, cost=PRODUCT), moves(1, 1, 0, what=MADE))
    assert group(*ops).producers == ((0, 1),)
    swapped = (
        kernel("mm", 7, cost=PRODUCT),
        kernel("add", 5, cost=MOVER),
        moves(1, 1, 0, what=MADE),
    )
    assert group(*swapped).producers == ()


def test_a_collective_of_what_another_made_has_no_maker():
    other = Collective("all_gather", 64)
    found = groups(moves(1, what=other), moves(1, 0, what=MADE))
    assert [each.producers for each in found] == [(), ()]


def test_the_slowest_maker_counts_and_ranks_without_one_are_no_obstacle():
    lookups = Cost("embedding", (64, 1000, 32, 8), "fp32")
    exchange = Collective("all_to_all", 4096, "fp32")
    quick = (kernel("bags", 3, cost=lookups), moves(1, 0, what=exchange))
    slow = (kernel("bags", 6, cost=lookups), moves(1, 0, what=exchange))
    none = (moves(1, what=exchange),)
    steps = tuple(RankStep((rank,), ops) for rank, ops in enumerate((quick, slow, none)))
    (found,) = groups_of(evaluator_of(StepGraph("three", 3, steps)))
    assert (found.producers, found.producer_seconds) == (((0, 0), (1, 0)), 6)
    assert len(found.members) == 3
    other = (kernel("sum", 1, cost=MOVER), moves(1, 0, what=exchange))
    steps = tuple(RankStep((rank,), ops) for rank, ops in enumerate((quick, other)))
    (found,) = groups_of(evaluator_of(StepGraph("two", 2, steps)))
    assert found.producers == ()


# Lookups in tables around an exchange.


LOOKUP = Cost("embedding", (64, 1000, 32, 8), "fp32")
GRADIENT = Cost("embedding-backward", (64, 1000, 32, 8), "fp32")
EXCHANGE = Collective("all_to_all", 4096, "fp32")


@pytest.mark.parametrize(
    ("ops", "looks_up"),
    [
        ((kernel("bags", 2, cost=LOOKUP), moves(1, 0, what=EXCHANGE)), True),
        ((moves(1, what=EXCHANGE), kernel("rows", 2, 0, cost=GRADIENT)), True),
        ((kernel("bags", 2, cost=LOOKUP), moves(1, what=EXCHANGE)), False),
        ((moves(1, what=EXCHANGE), kernel("rows", 2, cost=GRADIENT)), False),
        ((kernel("sum", 2, cost=MOVER), moves(1, 0, what=EXCHANGE)), False),
        ((kernel("unknown", 2), moves(1, 0, what=EXCHANGE)), False),
        ((moves(1, what=EXCHANGE), kernel("rows", 2, 0, cost=GRADIENT), kernel("x", 1)), True),
        ((kernel("bags", 2, cost=LOOKUP), moves(1, 0)), False),  # an all-gather
    ],
)
def test_an_exchange_looks_up_where_tables_make_it_or_take_it(ops, looks_up):
    assert group(*ops).looks_up is looks_up


def test_what_looks_up_in_one_of_equal_exchanges_looks_up():
    ops = (kernel("bags", 2, cost=LOOKUP), moves(1, 0, what=EXCHANGE), moves(1, what=EXCHANGE))
    assert group(*ops).looks_up


def test_an_exchange_has_the_lookups_that_make_it():
    ops = (kernel("bags", 2, cost=LOOKUP), moves(1, 0, what=EXCHANGE))
    assert [each.replaced for each in group(*ops).lookups] == [(0,)]
    assert group(kernel("bags", 2, cost=LOOKUP), moves(1, 0)).lookups == ()
