"""Steps in whole seconds on a machine that adds none of its own: what tests of plans share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.cost.price import Price
from weft.hardware import Platform, platform
from weft.planner.prices import Prices
from weft.planner.step_price import StepPricer
from weft.planner.ways import Pair, Way
from weft.schedule import Cost
from weft.workload import NO_HOST, Collective, Op, Step, Workload
from weft.workload.meeting import meetings

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


def step_of(*ops: Op, ranks: int = 2, **more: Any) -> Workload:
    return Workload("toy", ranks, (Step(tuple(range(ranks)), ops),), **more)


def pricer_of(workload: Workload, machine: Platform = MACHINE) -> StepPricer:
    return StepPricer(workload, machine, Prices(machine), meetings(workload), NO_HOST)


def pair_of(*members: int, what: Collective = GATHER, hidden: float = 0.0, **more: Any) -> Pair:
    """A pair of the first class of ranks, of two ranks, that nothing runs beside."""
    places = tuple((0, number) for number in members or (0,))
    return Pair(what, (0, 1), places, hidden, more.pop("by_memory", 0.5), **more)


def way(seconds: float, strategy: str = "concurrent", **more: Any) -> Way:
    """A way that takes so long by itself, give or take a tenth."""
    return Way(strategy, Price(seconds, 0.9 * seconds, 1.1 * seconds), **more)
