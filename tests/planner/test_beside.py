"""Kernels beside collectives take longer, by the units that a collective holds."""

from dataclasses import replace

import pytest

from weft.hardware import Cores, platform
from weft.planner.beside import overlaps, slowed
from weft.planner.planning import plan
from weft.planner.predict import predict
from weft.planner.prices import Prices
from weft.schedule import Cost
from weft.workload import Collective, Op, Step, Workload
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


@pytest.mark.parametrize("name", ["h100-8", "mi300x-8", "a100-8"])
@pytest.mark.parametrize("given", [{"fsdp": "true"}, {}, {"tp": "2", "fsdp": "true"}])
def test_a_plan_starts_from_what_is_predicted(name, given):
    workload = generate("gpt2-medium", 8, {"layers": "4", "heads": "16", **given})
    machine = platform(name)
    found, made = plan(workload, machine, mode="heuristic"), predict(workload, machine)
    assert found.baseline == pytest.approx(made.seconds, rel=2e-3)
    assert found.high / found.planned == pytest.approx(made.high / made.seconds, rel=5e-3)
