"""A strategy gains the same on a step as it is generated and as a profiler records it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.whatif.kineto_writer import write_kineto
from weft.hardware import platform
from weft.planner.plan import Limits
from weft.planner.planning import drafted_step
from weft.planner.prices import Prices, default_library
from weft.schedule import Cost
from weft.schedule.strategy import STRATEGIES
from weft.step import NO_HOST, Collective, Op, RankStep, StepEngine, StepGraph
from weft.trace import read
from weft.whatif import what_if
from weft.whatif.planned import plan_recorded

pytestmark = pytest.mark.thorough

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
DEVICES = {"h100-8": "NVIDIA H100 80GB HBM3", "mi300x-8": "AMD Instinct MI300X"}
LIMITS = Limits(error=1.0, codecs=("pack",))


def random_step(draw):
    """Draw products and streaming kernels with collectives behind some of them."""
    ops: list[Op] = []
    for _ in range(draw.randint(2, 6)):
        if draw.random() < 0.6:
            sides = tuple(draw.choice((1024, 2048, 4096, 8192)) for _ in range(3))
            cost = Cost("gemm", sides, "bf16")
        else:
            nbytes = draw.choice((64, 128, 256, 512, 1024)) << 20
            cost = Cost("elementwise", (nbytes,), "bf16", nbytes=nbytes)
        ops.append(Op("kernel", cost=cost))
        if draw.random() < 0.6 or len(ops) == 1:
            what = Collective(draw.choice(KINDS), draw.randint(8, 256) << 20)
            ops.append(Op("moves", "collective", "comm", None, what, (len(ops) - 1,)))
            if draw.random() < 0.3:
                ops.append(Op("kernel", cost=cost, after=(len(ops) - 1,)))
    return StepGraph("drawn", 8, (RankStep(tuple(range(8)), tuple(ops)),))


def drafted(machine, graph, limits=LIMITS):
    prices = Prices(machine, default_library(machine))
    engine = StepEngine(graph, machine, prices, host=NO_HOST)
    return drafted_step(engine, prices, limits, 1 << 60)


@pytest.mark.parametrize("seed", range(60))
def test_whatif_of_a_recorded_step_gains_what_a_plan_says(tmp_path, seed):
    draw = random.Random(seed)
    name = draw.choice(list(DEVICES))
    limits = replace(LIMITS, hypothetical=True)  # as what-if, which asks no stack
    search = drafted(platform(name), random_step(draw), limits).search
    known = (each for each in STRATEGIES if each != "concurrent")  # as recorded
    names = [each for each in known if search.by_strategy(each)[1]]
    strategy = draw.choice(names)
    chosen, _ = search.by_strategy(strategy)
    trace = read(write_kineto(tmp_path / "t.json", search.run(search.base), DEVICES[name]))
    (found,) = what_if(trace, [strategy]).outcomes
    assert 1 - found.gain == pytest.approx(search.seconds(chosen) / search.base_seconds, rel=1e-3)


@pytest.mark.parametrize("seed", range(100, 110))
def test_a_plan_of_a_recorded_step_is_the_plan_of_the_step(tmp_path, seed):
    draw = random.Random(seed)
    name = draw.choice(list(DEVICES))
    search = drafted(platform(name), random_step(draw)).search
    chosen = search.reverted(search.improved(search.greedy()))
    trace = read(write_kineto(tmp_path / "t.json", search.run(search.base), DEVICES[name]))
    made = plan_recorded(trace, limits=LIMITS).plan
    assert made.baseline == pytest.approx(search.base_seconds, rel=1e-3)
    assert made.planned == pytest.approx(search.seconds(chosen), rel=2e-3)
