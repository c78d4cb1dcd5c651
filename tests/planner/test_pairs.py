"""Each collective of a step with what runs beside it, what makes it and what looks it up."""

from __future__ import annotations

import pytest

from tests.planner.toy import kernel, moves, pricer_of, step_of
from weft.planner.pairs import pairs_of
from weft.schedule import Cost
from weft.schedule.values import Group
from weft.workload import Collective, Step, Workload

PRODUCT = Cost("gemm", (100, 50, 10), "fp32", flops=1e15, nbytes=1)  # makes 20,000 bytes
MOVER = Cost("elementwise", (), "fp32", nbytes=1 << 20)
MADE = Collective("all_reduce", 100 * 50 * 4, "fp32")


def pairs(*ops, ranks=2, **more):
    return pairs_of(pricer_of(step_of(*ops, ranks=ranks, **more)))


def pair(*ops, **more):
    (found,) = pairs(*ops, **more)
    return found


# Which collectives are one pair.


def test_equal_collectives_are_one_pair_and_others_are_others():
    small, large = Collective("all_gather", 8), Collective("all_gather", 16)
    found = pairs(moves(1, what=small), moves(1, what=large), moves(1, what=small))
    assert [(each.what, each.members) for each in found] == [
        (small, ((0, 0), (0, 2))),
        (large, ((0, 1),)),
    ]


def test_collectives_of_two_phases_are_two_pairs():
    found = pairs(moves(1, phase="forward"), moves(1, phase="backward"), moves(1, phase="forward"))
    assert [(each.phase, len(each.members)) for each in found] == [("forward", 2), ("backward", 1)]


def test_collectives_that_other_products_make_are_other_pairs():
    found = pairs(
        kernel("up", 3, cost=PRODUCT),
        moves(1, 0, what=MADE),
        kernel("down", 5, cost=PRODUCT),
        moves(1, 2, what=MADE),
        kernel("add", 5, cost=MOVER),
        moves(1, 4, what=MADE),
    )
    assert [(each.made_by, each.making, each.makers) for each in found] == [
        ("up", 3, ((0, 0),)),
        ("down", 5, ((0, 2),)),
        ("", 0, ()),
    ]


def test_a_rank_alone_has_no_pairs():
    alone = Collective("all_gather", 8, group="alone")
    assert pairs(moves(1, what=alone), groups={"alone": Group(1)}) == ()
    both = pair(moves(1, what=alone), groups={"alone": Group(2)}, ranks=4)
    assert both.ranks == (0, 1)


def test_uneven_exchanges_are_pairs_by_what_the_busiest_rank_moves():
    uneven = Collective("all_to_all", 40, "fp32", splits=(10, 30))
    found = pair(moves(1, what=uneven))
    assert found.what.splits == ()
    assert found.what.nbytes == 2 * 30


# What runs beside it.


def test_hidden_is_the_share_of_its_time_that_kernels_run_beside_on_the_average_of_all():
    ops = (moves(4), kernel("a", 1), kernel("wait", 1, 0), moves(4, 2), kernel("b", 3))
    assert pair(*ops).hidden == pytest.approx((1 / 4 + 3 / 4) / 2)
    assert pair(moves(4)).hidden == 0
    assert pair(moves(4, stream="compute"), kernel("a", 1), kernel("b", 3)).hidden == 0


def test_beside_names_the_kernel_that_runs_there_longest_in_all():
    ops = (moves(9), kernel("a", 2), kernel("b", 3), kernel("a", 2))
    assert pair(*ops).beside == "a"
    assert pair(moves(9)).beside == ""


def test_by_memory_is_the_share_of_what_runs_beside_that_memory_bounds():
    ops = (moves(8), kernel("mm", 3, cost=PRODUCT), kernel("add", 1, cost=MOVER))
    assert pair(*ops).by_memory == pytest.approx(1 / 4)
    assert pair(moves(8)).by_memory == 0.5  # nobody knows


def test_a_product_that_runs_beside_all_of_equal_collectives_alone_is_told():
    ops = (moves(2), kernel("mm", 3, cost=PRODUCT), kernel("x", 1, 0))
    again = (moves(2, 2), kernel("mm", 3, 2, cost=PRODUCT))
    assert pair(*ops, *again).gemm == PRODUCT
    other = Cost("gemm", (7, 7, 7), "fp32", flops=1e15)
    assert pair(*ops, moves(2, 2), kernel("mm", 3, 2, cost=other)).gemm is None
    assert pair(*ops, moves(2, 2)).gemm is None


@pytest.mark.parametrize(
    ("beside", "gemm"),
    [
        ([kernel("mm", 9, cost=PRODUCT)], PRODUCT),
        ([kernel("mm", 9, cost=PRODUCT), kernel("add", 0.1, cost=MOVER)], PRODUCT),  # one percent
        ([kernel("mm", 49, cost=PRODUCT), kernel("add", 1, cost=MOVER)], PRODUCT),  # two
        ([kernel("mm", 9, cost=PRODUCT), kernel("add", 0.5, cost=MOVER)], None),  # five
        ([kernel("add", 9, cost=MOVER)], None),
        ([kernel("unknown", 9)], None),
        ([kernel("empty", 9, cost=Cost("gemm", (0, 8, 8), "bf16"))], None),
        ([], None),
    ],
)
def test_two_percent_of_what_runs_beside_do_not_count(beside, gemm):
    assert pair(moves(60), *beside).gemm == gemm


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
    found = pair(kernel("maker", 7, cost=Cost(family, shape, dtype)), moves(1, 0, what=made))
    assert (found.makers, found.making) == ((((0, 0),), 7) if makes else ((), 0))
    assert found.made_by == ("maker" if makes else "")


def test_the_last_kernel_before_it_is_its_maker():
    ops = (kernel("first", 5, cost=MOVER), kernel("mm", 7, cost=PRODUCT), moves(1, 1, 0, what=MADE))
    assert pair(*ops).makers == ((0, 1),)
    swapped = (
        kernel("mm", 7, cost=PRODUCT),
        kernel("add", 5, cost=MOVER),
        moves(1, 1, 0, what=MADE),
    )
    assert pair(*swapped).makers == ()


def test_a_collective_of_what_another_made_has_no_maker():
    other = Collective("all_gather", 64)
    found = pairs(moves(1, what=other), moves(1, 0, what=MADE))
    assert [each.makers for each in found] == [(), ()]


def test_the_slowest_maker_counts_and_ranks_without_one_are_no_obstacle():
    lookups = Cost("embedding", (64, 1000, 32, 8), "fp32")
    exchange = Collective("all_to_all", 4096, "fp32")
    quick = (kernel("bags", 3, cost=lookups), moves(1, 0, what=exchange))
    slow = (kernel("bags", 6, cost=lookups), moves(1, 0, what=exchange))
    none = (moves(1, what=exchange),)
    steps = tuple(Step((rank,), ops) for rank, ops in enumerate((quick, slow, none)))
    (found,) = pairs_of(pricer_of(Workload("three", 3, steps)))
    assert (found.makers, found.making) == (((0, 0), (1, 0)), 6)
    assert len(found.members) == 3
    other = (kernel("sum", 1, cost=MOVER), moves(1, 0, what=exchange))
    steps = tuple(Step((rank,), ops) for rank, ops in enumerate((quick, other)))
    (found,) = pairs_of(pricer_of(Workload("two", 2, steps)))
    assert found.makers == ()


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
    assert pair(*ops).looks_up is looks_up


def test_what_looks_up_in_one_of_equal_exchanges_looks_up():
    ops = (kernel("bags", 2, cost=LOOKUP), moves(1, 0, what=EXCHANGE), moves(1, what=EXCHANGE))
    assert pair(*ops).looks_up


def test_lookups_of_an_exchange_are_told_with_what_they_take():
    ops = (kernel("bags", 2, cost=LOOKUP), moves(1, 0, what=EXCHANGE))
    assert [each.seconds_now for each in pair(*ops).lookups] == [2]
    assert pair(kernel("bags", 2, cost=LOOKUP), moves(1, 0)).lookups == ()
