"""DMA: copy engines move the bytes and leave the units to kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from weft.c3 import Gemm, Pricer, Scenario
from weft.c3.strategies import COLLECTIVES, masks
from weft.collectives import ENGINE_FEATURES, algorithms, engine_algorithms
from weft.collectives.catalogue import REDUCING
from weft.planner.candidates import Candidate, infeasible
from weft.planner.strategies.context import ONE_CORE, NodeKey, algorithm_price, scaled
from weft.schedule.strategy import Strategy
from weft.simulator import collective_units
from weft.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.planner.candidates import CollectiveGroup
    from weft.planner.plan import Alternative
    from weft.planner.strategies.context import StrategyContext

_FED = ("all_gather", "all_to_all")  # by algorithms of engines
_SMALL = 32 << 20  # bytes up to which how engines are fed matters (arXiv 2511.06605)
_SMALLEST = 64 << 10  # bytes; below, launches are all there is


def candidates(
    context: StrategyContext, group: CollectiveGroup
) -> Iterator[Candidate | Alternative]:
    """Yield engines, engines with units kept free, and small messages fed in other ways."""
    if context.device.is_core:
        yield infeasible("dma+partition", ONE_CORE)
        yield _by_thread(context, group)
        return
    names, kind = ("dma", "dma+partition"), group.what.kind
    if why := _no_engines(context, group):
        yield from (infeasible(name, why) for name in names)
    else:
        node = context.node(group)
        assert node is not None
        # Both sides of the ratio are simulated, so that errors of the simulator cancel.
        ratio = _engine_ratio(NodeKey(node), kind, group.what.nbytes)
        price = scaled(context.alone(group), ratio)
        sums = collective_units(context.platform) if kind in REDUCING else 0
        why = f"engines leave the units to kernels{', sums stay on units' if sums else ''}"
        engines = _num_engines(context, group)
        yield Candidate(Strategy("dma", engines=engines), price, sums, why=why)
        for units in masks(context.device)[:2]:
            masked = Strategy("dma+partition", engines=engines, units=units)
            told = f"{why}; {units} units fewer crowd the cache less"
            yield Candidate(masked, price, max(units, sums), why=told)
    yield from _fed(context, group)


def _no_engines(context: StrategyContext, group: CollectiveGroup) -> str:
    """Return why engines cannot carry a group out, if they cannot."""
    kind, allowed = group.what.kind, context.limits.engines
    if context.spans_nodes(group):
        return "engines reach the memory of one node, its ranks are on several"
    if kind not in COLLECTIVES and context.device.dma is not None:
        return f"engines do not carry out {kind}"
    if why := context.device.engine_refusal(kind):
        return why
    needed = _num_engines(context, group)
    if allowed is not None and allowed < needed:
        return f"needs {needed} engines, {allowed} are allowed"
    return ""


def _num_engines(context: StrategyContext, group: CollectiveGroup) -> int:
    """Return how many engines carry the transfers of a rank: one for each, if there are."""
    # An all-to-all by engines also copies the rank's own chunk by one.
    transfers = len(group.ranks) - 1 + (group.what.kind == "all_to_all")
    return min(transfers, context.device.require_dma().num_engines)


def _fed(context: StrategyContext, group: CollectiveGroup) -> Iterator[Candidate | Alternative]:
    """Yield algorithms that feed engines faster, for messages so small that feeding dominates."""
    node, what, device = context.node(group), group.what, context.device
    if node is None or what.kind not in _FED or what.nbytes > _SMALL:
        return
    if device.engine_refusal(what.kind):  # named among other strategies already
        return
    can = engine_algorithms(what.kind, device)
    for name in can:
        price = algorithm_price(NodeKey(node), what.kind, name, what.nbytes)
        transfers = 1 if "b2b" in ENGINE_FEATURES[name] else len(group.ranks) - 1
        engines = min(transfers, device.require_dma().num_engines)
        fits = context.limits.engines is None or engines <= context.limits.engines
        if price is not None and fits:
            why = f"engines, {format_time(price.seconds)} by {name}"
            yield Candidate(Strategy("dma", algorithm=name, engines=engines), price, 0, why=why)
    others = [n for n in algorithms(what.kind) if n in ENGINE_FEATURES and n not in can]
    if others:
        needed = tuple(dict.fromkeys(each for name in others for each in ENGINE_FEATURES[name]))
        yield infeasible("dma", f"{device.feature_refusal(needed)}: {', '.join(others)}")


def _by_thread(context: StrategyContext, group: CollectiveGroup) -> Candidate | Alternative:
    """Return the candidate of an engine that is a thread: it needs a core that no rank has."""
    platform, allowed = context.platform, context.limits.engines
    cores = platform.machine.cores if platform.machine is not None else platform.node_size
    if cores <= platform.node_size:
        return infeasible("dma", f"an engine is a thread, and {cores} cores have a rank each")
    if allowed is not None and allowed < 1:
        return infeasible("dma", f"needs 1 engine, {allowed} are allowed")
    why = "an engine thread copies on a core that has no rank"
    mine = context.weft.collective_price(group.what, group.ranks)
    return Candidate(Strategy("dma", backend="weft", engines=1), mine, why=why)


@lru_cache(maxsize=64)
def _pricer(node: NodeKey) -> Pricer:
    return Pricer(node.machine)


@lru_cache(maxsize=4096)
def _engine_ratio(node: NodeKey, kind: str, nbytes: int) -> float:
    """Return how many times as long engines take alone as a kernel of the same collective.

    Both are simulated; the library's own price, often measured, is scaled by it.
    """
    pricer, ranks = _pricer(node), node.machine.num_ranks
    # Chunks of whole 16-byte words, and at least one.
    size = max(_SMALLEST, nbytes) // (16 * ranks) * (16 * ranks)
    scenario = Scenario("", Gemm(1024, 1024, 1024, pricer.dtype), kind, max(size, 16 * ranks))
    return pricer.engines(scenario) / pricer.comm(scenario)
