"""Steps in whole seconds on a machine that adds none of its own: what tests of plans share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.cost.price import Price
from weft.hardware import Platform, platform
from weft.planner.candidates import Candidate, CollectiveGroup
from weft.planner.evaluation import StepEvaluator
from weft.planner.prices import Prices
from weft.schedule import Cost
from weft.schedule.strategy import Strategy
from weft.step import NO_HOST, Collective, Op, RankStep, StepEngine, StepGraph

GATHER = Collective("all_gather", 1 << 20)


def quiet(name: str) -> Platform:
    """A machine whose launches and signals take no time; prices are kept by the name of one."""
    known = platform(name)
    device = replace(known.require_device(), launch=0.0, host_launch=0.0, signal=0.0)
    return replace(known, name=f"quiet-{name}", device=device)


MACHINE = quiet("h100-8")


def kernel(
    name: str, seconds: float | None, *after: int, cost: Cost | None = None, **more: Any
) -> Op:
    return Op(name, cost=cost, after=after, seconds=seconds, **more)


def moves(
    seconds: float | None, *after: int, what: Collective = GATHER, stream: str = "comm", **more: Any
) -> Op:
    return Op(what.kind, "collective", stream, None, what, after, seconds=seconds, **more)


def step_of(*ops: Op, ranks: int = 2, **more: Any) -> StepGraph:
    return StepGraph("toy", ranks, (RankStep(tuple(range(ranks)), ops),), **more)


def evaluator_of(graph: StepGraph, machine: Platform = MACHINE) -> StepEvaluator:
    prices = Prices(machine)
    return StepEvaluator(StepEngine(graph, machine, prices, host=NO_HOST), prices)


def group_of(
    *members: int, what: Collective = GATHER, hidden: float = 0.0, **more: Any
) -> CollectiveGroup:
    """A group of the first class of ranks, of two ranks, that nothing overlaps."""
    places = tuple((0, number) for number in members or (0,))
    return CollectiveGroup(what, (0, 1), places, hidden, **more)


def candidate(seconds: float, how: Strategy | str = "concurrent", **more: Any) -> Candidate:
    """A candidate that takes so long alone, give or take a tenth."""
    strategy = Strategy(how) if isinstance(how, str) else how
    return Candidate(strategy, Price(seconds, 0.9 * seconds, 1.1 * seconds), **more)
