"""Small steps drawn at random, and the best that any combination of strategies makes of them.

A step is a few products in a row, each with a collective that runs next to it and that the next
one waits for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from validation.random_pairs import random_pairs
from weft.c3 import Scenario
from weft.models.building import Ops
from weft.planner.planning import search_of
from weft.step import NO_HOST
from weft.step.step_graph import RankStep, StepGraph

if TYPE_CHECKING:
    from weft.hardware import Platform

KINDS = ("all_gather", "all_to_all", "reduce_scatter", "all_reduce")
MOST = 3  # pairs of a step: all combinations of their candidates are run


@dataclass(frozen=True, slots=True)
class RandomStep:
    """Some pairs, one after the other, and the workload that they are."""

    scenarios: tuple[Scenario, ...]
    graph: StepGraph


def random_steps(count: int, platform: Platform, *, seed: int = 0) -> Iterator[RandomStep]:
    """Draw steps of one to three pairs: layers of transformers and collectives of any length."""
    draw = random.Random(seed)  # noqa: S311 - steps are no secrets
    sizes = [draw.randint(1, MOST) for _ in range(count)]
    pairs = random_pairs(sum(sizes), platform, KINDS, seed=seed)
    for number, size in enumerate(sizes):
        scenarios = tuple(next(pairs) for _ in range(size))
        yield RandomStep(scenarios, _workload(f"step {number}", scenarios, platform.num_ranks))


def _workload(name: str, scenarios: tuple[Scenario, ...], num_ranks: int) -> StepGraph:
    """Make each product wait for the collective before it, each collective for the product."""
    made, sent, computed = Ops("bf16"), -1, -1
    for scenario in scenarios:
        gemm = scenario.gemm
        before = computed
        computed = made.gemm(f"product {len(made.ops)}", gemm.m, gemm.n, gemm.k, after=sent)
        sent = made.collective(scenario.collective, scenario.nbytes, after=before)
    return StepGraph(name, num_ranks, (RankStep(tuple(range(num_ranks)), tuple(made.ops)),))


def exhaustive(step: RandomStep, platform: Platform) -> float:
    """Return the seconds of the step with the best of all combinations of candidates."""
    search = search_of(step.graph, platform, host=NO_HOST)
    every = [tuple(dict.fromkeys((each.base, *each.candidates))) for each in search.options]
    return min(search.seconds(chosen) for chosen in product(*every))
