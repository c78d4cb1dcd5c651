"""What a strategy changes for a collective and for kernels beside it, from pairs of ``weft.c3``.

A pair stands for each collective: the same kind, its bytes to the next power of two, and a GEMM
that takes about as long, once bound by arithmetic and once by memory. Effects are told beside
each of the two by itself: by the simulator, or by the rule of a runtime, from static sizes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from weft.c3 import Choice, Gemm, Pricer, Scenario, pair_schedule
from weft.c3.strategies import COLLECTIVES, check_choice
from weft.simulator import simulate

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.schedule import Cost
    from weft.workload import Collective

BOUNDS = ("arithmetic", "memory")
_SIDE = 8192
_THIN = 128  # rows of a GEMM that memory bounds
_SIMULATED = 8  # of the estimated ways of a pair, beside the best of each strategy
_SMALLEST = 64 << 10  # bytes; below, launches are all there is
_LAUNCHED_FIRST = "priority"


class Effect(NamedTuple):
    """How many times as long a collective and the kernels beside it take as by themselves."""

    comm: float
    compute: float
    units: int | None = None


class PairPrice(NamedTuple):
    """Seconds of a product and a collective by a strategy, and what they do to each other."""

    seconds: float
    effect: Effect


class Node:
    """A platform of one node, equal by its name, ranks and device."""

    def __init__(self, machine: Platform) -> None:
        self.machine = machine
        self._key = machine.name, machine.levels

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Node) or self._key != other._key:
            return False
        mine, theirs = self.machine.device, other.machine.device
        return mine is theirs or mine == theirs


def effect(
    node: Node, kind: str, nbytes: int, strategy: str, bound: str, *, simulated: bool = True
) -> Effect:
    """Give what a strategy changes; raises where the pair cannot be carried out so.

    In a step kernel follows kernel, so a library's collective, once admitted, runs beside them as
    if it had been launched first: that is what the change is from.
    """
    size = max(_SMALLEST, 1 << max(0, nbytes - 1).bit_length())
    mine = _effect(node, kind, size, strategy, bound, simulated)
    base = _effect(node, kind, size, _LAUNCHED_FIRST, bound, simulated)
    return Effect(mine.comm / base.comm, mine.compute / base.compute, mine.units)


@lru_cache(maxsize=64)
def pricer_of(node: Node) -> Pricer:
    """Give the pricer of a node, made once."""
    return Pricer(node.machine)


@lru_cache(maxsize=4096)
def _effect(
    node: Node,
    kind: str,
    nbytes: int,
    strategy: str,
    bound: str,
    simulated: bool,  # noqa: FBT001 - a cache has no keywords worth having
) -> Effect:
    check_choice(Choice(strategy), kind, node.machine)
    pricer = pricer_of(node)
    num_ranks = node.machine.num_ranks
    scenario = _scenario(node, kind, nbytes - nbytes % (16 * num_ranks), bound)
    plain = Choice(strategy)
    choice = pricer.rule.masks_for(scenario, [strategy])[strategy] if plain.masks else plain
    found = (
        _simulated(pricer, scenario, choice) if simulated else _by_rule(pricer, scenario, choice)
    )
    return found._replace(units=choice.units)


@lru_cache(maxsize=1024)
def _scenario(node: Node, kind: str, nbytes: int, bound: str) -> Scenario:
    """Choose the GEMM that takes about as long as the collective."""
    pricer = pricer_of(node)
    dtype = pricer.dtype
    draft = Scenario("", Gemm(_SIDE, _SIDE, _SIDE, dtype), kind, nbytes)
    seconds = pricer.comm(draft)
    if bound == "arithmetic":
        share = seconds / pricer.compute(draft.gemm)
        gemm = Gemm(min(1 << 17, max(256, round(_SIDE * share / 256) * 256)), _SIDE, _SIDE, dtype)
    else:
        thin = Gemm(_THIN, _SIDE, _SIDE, dtype)
        columns = max(256, round(_SIDE * seconds / pricer.compute(thin) / 256) * 256)
        gemm = Gemm(_THIN, min(1 << 20, columns), _SIDE, dtype)
    return Scenario("", gemm, kind, nbytes)


def _simulated(pricer: Pricer, scenario: Scenario, choice: Choice) -> Effect:
    """Simulate a pair: when the collective was over, and how long the GEMM took."""
    timeline = simulate(pair_schedule(scenario, choice, pricer.platform), pricer.platform)
    spans = list(timeline.of(rank=int(timeline.ranks[0])).spans())
    gemm = next(span for span in spans if span.name == "gemm")
    ends = [s.end for s in spans if s.queue not in ("host", gemm.queue)]
    alone = pricer.comm(scenario), pricer.compute(scenario.gemm)
    return Effect(max(ends) / alone[0], max(1.0, (gemm.end - gemm.start) / alone[1]))


def _by_rule(pricer: Pricer, scenario: Scenario, choice: Choice) -> Effect:
    """Estimate the same from static sizes."""
    rule = pricer.rule
    both = rule.beside(scenario, choice)
    alone = rule.comm_seconds(scenario, Choice("priority"))
    whole = rule.gemm(scenario.gemm, 0).seconds
    return Effect((both.lead + both.comm) / alone, max(1.0, both.gemm / whole))


@lru_cache(maxsize=1024)
def pair_prices(
    node: Node, what: Collective, gemm: Cost, *, simulated: bool = True
) -> dict[str, PairPrice]:
    """Price a product and a collective by each strategy that applies, with its best mask.

    The rule estimates every mask of every strategy. That is the answer, or where ``simulated``
    the order in which they are simulated: the best of each strategy, and the best few of all.
    """
    pricer = pricer_of(node)
    rows, columns, depth = (int(side) for side in gemm.shape)
    size = max(1, round(what.nbytes / node.machine.num_ranks)) * node.machine.num_ranks
    scenario = Scenario("", Gemm(rows, columns, depth, gemm.dtype), what.kind, size)
    if gemm.dtype not in node.machine.require_device().flops or what.kind not in COLLECTIVES:
        return {}
    guesses = sorted(
        (
            (pricer.rule.estimate(scenario, choice), choice)
            for choice in pricer.rule.choices(scenario)
        ),
        key=lambda each: each[0],
    )
    found: dict[str, PairPrice] = {}
    for place, (guess, choice) in enumerate(guesses):
        if choice.strategy in found and place >= _SIMULATED:
            continue
        seconds = pricer.pair(scenario, choice) if simulated else guess
        if choice.strategy not in found or seconds < found[choice.strategy].seconds:
            found[choice.strategy] = PairPrice(seconds, _beside(pricer, scenario, choice))
    return found


def _beside(pricer: Pricer, scenario: Scenario, choice: Choice) -> Effect:
    if choice.strategy == "serial":
        return Effect(1.0, 1.0)
    return _by_rule(pricer, scenario, choice)._replace(units=choice.units)
