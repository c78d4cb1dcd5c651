"""Small steps drawn at random, and the best that any choice of strategies makes of them.

A step is a few products in a row, each with a collective beside it that the next one waits for.
So its pairs meet at joins, and the best of all combinations is the best of each pair: searching
every strategy and mask of each is the exhaustive search of the step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.c3 import Choice, Pricer, Scenario
from weft.c3.random_pairs import random_pairs
from weft.workload.building import Ops
from weft.workload.step import Step, Workload

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.planner.plan import Plan

KINDS = ("all_gather", "all_to_all", "reduce_scatter", "all_reduce")
MOST = 4  # pairs of a step


@dataclass(frozen=True, slots=True)
class RandomStep:
    """Some pairs, one after the other, and the workload that they are."""

    scenarios: tuple[Scenario, ...]
    workload: Workload


def random_steps(count: int, platform: Platform, *, seed: int = 0) -> Iterator[RandomStep]:
    """Draw steps of one to four pairs: layers of transformers beside collectives of any length."""
    draw = random.Random(seed)  # noqa: S311 - steps are no secrets
    sizes = [draw.randint(1, MOST) for _ in range(count)]
    pairs = random_pairs(sum(sizes), platform, KINDS, seed=seed)
    for number, size in enumerate(sizes):
        scenarios = tuple(next(pairs) for _ in range(size))
        yield RandomStep(scenarios, _workload(f"step {number}", scenarios, platform.num_ranks))


def _workload(name: str, scenarios: tuple[Scenario, ...], num_ranks: int) -> Workload:
    """Make each product wait for the collective before it, each collective for the product."""
    made, sent, computed = Ops("bf16"), -1, -1
    for scenario in scenarios:
        gemm = scenario.gemm
        before = computed
        computed = made.gemm(f"product {len(made.ops)}", gemm.m, gemm.n, gemm.k, after=sent)
        sent = made.collective(scenario.collective, scenario.nbytes, after=before)
    return Workload(name, num_ranks, (Step(tuple(range(num_ranks)), tuple(made.ops)),))


def exhaustive(step: RandomStep, pricer: Pricer, strategy: str = "") -> float:
    """Give the seconds of the best of all combinations, or of all masks of one strategy."""
    return sum(
        min(
            pricer.pair(scenario, choice)
            for choice in pricer.rule.choices(scenario)
            if strategy in ("", choice.strategy)
        )
        for scenario in step.scenarios
    )


def by_plan(step: RandomStep, plan: Plan, pricer: Pricer) -> float:
    """Give the seconds of the step as planned, simulated."""
    chosen = {op: choice for choice in plan.choices for op in choice.ops}
    ops = [n for n, op in enumerate(step.workload.steps[0].ops) if op.collective is not None]
    total = 0.0
    for scenario, op in zip(step.scenarios, ops, strict=True):
        units = chosen[op].settings.get("units")
        choice = Choice(chosen[op].strategy, None if units is None else int(units))
        total += pricer.pair(scenario, choice)
    return total


def published(step: RandomStep, pricer: Pricer) -> float:
    """Give the seconds by the published rule: units for which the slower alone is fastest."""
    rule = pricer.rule
    return sum(pricer.pair(scenario, rule.published(scenario)) for scenario in step.scenarios)
