"""Kernels beside collectives take longer, by the units that a collective holds."""

from dataclasses import replace

import pytest

from tests.planner.toy import MACHINE, kernel, moves, quiet
from weft.hardware import Cores, Flops, platform
from weft.planner.beside import is_mover, overlaps, slow_down, slowed
from weft.planner.beside import stretched as longer
from weft.planner.planning import plan
from weft.planner.predict import predict
from weft.planner.prices import Prices
from weft.schedule import Cost
from weft.workload import NO_HOST, Collective, Op, Step, Workload
from weft.workload.named import generate

H100 = platform("h100-8")
GEMM = Cost("gemm", (8192, 8192, 8192), "bf16")
ADD = Cost("elementwise", (), "bf16", nbytes=1 << 30)


def step_of(*ops, ranks=8):
    return Workload("step", ranks, (Step(tuple(range(ranks)), ops),))


def exchange(nbytes):
    return Op("reduce", "collective", "comm", collective=Collective("all_reduce", nbytes))


def stretched(workload, times=1.0):
    prices = Prices(H100)
    found = slowed(workload, H100, prices, times=times)
    return [
        op.seconds and op.seconds / prices.kernel(op.cost)
        for op in found.steps[0].ops
        if op.cost is not None
    ]


def test_a_product_beside_a_collective_runs_on_the_units_that_are_left():
    long = exchange(8 << 30)
    product, added = stretched(step_of(long, Op("mm", cost=GEMM), Op("add", cost=ADD)))
    assert product == pytest.approx(132 / (132 - 20), rel=0.01)
    assert added == pytest.approx(1 + (product - 1) / 3, rel=0.01)
    assert stretched(step_of(long, Op("mm", cost=GEMM)), 2.0)[0] == pytest.approx(
        1 + 2 * (product - 1), rel=0.02
    )


def test_a_kernel_is_slowed_while_the_collective_runs():
    short = stretched(step_of(exchange(64 << 20), Op("mm", cost=GEMM)))[0]
    assert 1.0 < short < 1.1
    behind = step_of(exchange(64 << 20), Op("mm", cost=GEMM, after=(0,)))
    assert stretched(behind) == [None]
    measured = step_of(exchange(8 << 30), Op("mm", cost=GEMM, seconds=1.0))
    assert stretched(measured) == [pytest.approx(1 / Prices(H100).kernel(GEMM))]


def test_the_slow_down_is_in_the_time_and_in_the_range():
    beside = step_of(exchange(1 << 30), Op("mm", cost=GEMM), Op("mm", cost=GEMM))
    apart = step_of(Op("mm", cost=GEMM), Op("mm", cost=GEMM))
    with_it, without = predict(beside, H100), predict(apart, H100)
    assert with_it.breakdown["compute"] > 1.02 * without.breakdown["compute"]
    assert with_it.low <= with_it.seconds <= with_it.high


def test_ranks_that_are_cores_and_ranks_alone_are_not_slowed():
    work = step_of(exchange(1 << 20), Op("mm", cost=GEMM), ranks=2)
    cores = platform("h100-8", num_ranks=2)
    assert overlaps(work, cores)
    shared = Cores(1, 1.0, 0.0, {}, {})
    device = replace(cores.require_device(), shared=shared)
    assert not overlaps(work, replace(cores, device=device))
    assert not overlaps(step_of(Op("mm", cost=GEMM), ranks=2), cores)


@pytest.mark.parametrize(
    ("ops", "may"),
    [
        ((exchange(8), Op("mm")), True),
        ((Op("mm"), exchange(8)), True),
        ((replace(exchange(8), stream="compute"), Op("mm")), False),
        ((Op("mm", stream="side"),), False),  # no collective
        ((Op("mm"),), False),
    ],
)
def test_collectives_on_streams_of_their_own_run_beside_kernels(ops, may):
    assert overlaps(step_of(*ops), H100) is may
    assert not overlaps(step_of(*ops, ranks=1), H100)


# What a collective does: how many of how many units it holds.


def units(total):
    return replace(H100, device=replace(H100.require_device(), units=total))


@pytest.mark.parametrize(
    ("total", "held", "movers", "times"),
    [
        (100, 20, 0.0, 1 + 20 / 80),
        (100, 20, 1.0, 1 + 20 / 80 / 3),  # a third of what products lose
        (100, 20, 0.5, 1 + 20 / 80 * 2 / 3),
        (100, 50, 0.0, 2.0),
        (100, 100, 0.0, 100.0),  # it never holds the last unit
        (100, 500, 0.0, 100.0),
        (2, 1, 0.0, 2.0),
        (2, 2, 0.0, 2.0),
        (1, 1, 0.0, 1.0),  # a device of one unit has none to give
    ],
)
def test_kernels_run_on_the_units_that_a_collective_leaves(total, held, movers, times):
    assert slow_down(units(total), "all_reduce", movers, held) == pytest.approx(times)


def test_a_library_holds_the_units_that_fill_the_links_unless_a_mask_says_how_many():
    assert slow_down(H100, "all_reduce", 0.0) == slow_down(H100, "all_reduce", 0.0, 20)
    assert slow_down(H100, "all_reduce", 0.0, 8) == pytest.approx(132 / 124)


def test_work_at_half_its_rate_is_half_done():
    assert longer(4.0, 2.0) == 2.0
    assert longer(6.0, 1.5) == pytest.approx(2.0)
    assert longer(6.0, 1.0) == 0.0


ROUND = replace(
    H100.require_device(),
    memory_rate=10.0,
    flops={"bf16": Flops(100.0, 100.0), "fp32": Flops(20.0, 20.0)},
)


@pytest.mark.parametrize(
    ("cost", "is_one"),
    [
        # Ten bytes take a second, a hundred operations another.
        (Cost("any", (), "bf16", flops=100, nbytes=11), True),
        (Cost("any", (), "bf16", flops=100, nbytes=10), False),
        (Cost("any", (), "bf16", flops=100, nbytes=9), False),
        (Cost("any", (), "fp32", flops=100, nbytes=49), False),  # five seconds
        (Cost("any", (), "fp32", flops=100, nbytes=51), True),
        (Cost("any", (), "odd", flops=100, nbytes=11), True),  # as fast as anything here
        (Cost("any", (), "odd", flops=100, nbytes=9), False),
        # Without flops the family says it.
        (Cost("gemm", (8, 8, 8), "bf16", nbytes=1), False),
        (Cost("attention", (), "bf16"), False),
        (Cost("elementwise", (), "bf16", nbytes=1), True),
        (None, False),
    ],
)
def test_what_takes_longer_to_move_than_to_compute_is_bound_by_memory(cost, is_one):
    assert is_mover(Op("kernel", cost=cost), ROUND) is is_one


# Kernels that are priced as so many seconds, on a machine that adds none.


def lasting(seconds):
    return Cost("gemm", (8, 8, 8), "bf16", seconds=seconds)


HELD = 132 / (132 - 20)  # by a library on H100


def slowed_seconds(*ops, times=1.0, **more):
    found = slowed(step_of(*ops, **more), MACHINE, Prices(MACHINE), host=NO_HOST, times=times)
    return [op.seconds for op in found.steps[0].ops]


def product(seconds, *after):
    return kernel("mm", None, *after, cost=lasting(seconds))


def test_a_kernel_loses_while_collectives_run_and_no_longer():
    long, early, late = product(10), moves(4), moves(3, 0)
    # Behind the kernel the late one finds nothing to slow.
    first, *_ = slowed_seconds(long, early, late)
    assert first == pytest.approx(10 + 4 * (1 - 1 / HELD))


def test_collectives_of_one_stream_and_of_two_slow_a_kernel_each():
    whole = product(20)
    one = slowed_seconds(whole, moves(4), moves(3))[0]
    assert one == pytest.approx(20 + 7 * (1 - 1 / HELD))
    two = slowed_seconds(whole, moves(4), moves(3, stream="other"))[0]
    assert two == pytest.approx(20 + 7 * (1 - 1 / HELD))
    kinds = slowed_seconds(whole, moves(4), moves(3, what=Collective("all_to_all", 8)))[0]
    assert kinds == pytest.approx(20 + 7 * (1 - 1 / HELD))


def test_each_kernel_is_slowed_by_its_part_of_a_collective():
    # Of 9 s the first takes 4, longer for it; the second has what is left.
    first, second, _ = slowed_seconds(product(4), product(10), moves(9))
    assert first == pytest.approx(4 + 4 * (1 - 1 / HELD), rel=0.03)
    assert first + second == pytest.approx(14 + 9 * (1 - 1 / HELD), rel=1e-6)


def test_a_kernel_between_two_collectives_is_as_fast_as_alone():
    ops = (moves(2), kernel("wait", 2.0), product(3), kernel("more", 2.0), moves(4, 3))
    assert slowed_seconds(*ops) == [2, 2, None, 2, 4]


def test_what_was_measured_is_not_slowed_again():
    assert slowed_seconds(kernel("mm", 5.0), moves(9)) == [5, 9]


def test_the_slow_down_may_be_asked_for_twice():
    expected = 10 + 4 * (1 - 1 / (1 + 2 * (HELD - 1)))
    assert slowed_seconds(product(10), moves(4), times=2.0)[0] == pytest.approx(expected)


def test_units_that_are_known_of_a_kind_count():
    # 32 of 304 units for every kind that was measured.
    mi300x = quiet("mi300x-8")
    found = slowed(step_of(product(10), moves(4)), mi300x, Prices(mi300x), host=NO_HOST)
    assert found.steps[0].ops[0].seconds == pytest.approx(10 + 4 * (1 - 272 / 304))


@pytest.mark.parametrize("name", ["h100-8", "mi300x-8", "a100-8"])
@pytest.mark.parametrize("given", [{"fsdp": "true"}, {}, {"tp": "2", "fsdp": "true"}])
def test_a_plan_starts_from_what_is_predicted(name, given):
    workload = generate("gpt2-medium", 8, {"layers": "4", "heads": "16", **given})
    machine = platform(name)
    found, made = plan(workload, machine, mode="heuristic"), predict(workload, machine)
    assert found.baseline == pytest.approx(made.seconds, rel=2e-3)
    assert found.high / found.planned == pytest.approx(made.high / made.seconds, rel=5e-3)
