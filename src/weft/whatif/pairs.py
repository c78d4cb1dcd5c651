"""What a strategy does to a collective and to kernels beside it, from the table of pairs.

The pair of ``weft c3`` that comes closest stands for each collective: the same kind, its bytes to
the next power of two, and a GEMM that takes about as long, once bound by arithmetic and once by
memory. The two differ by what the kernels of the step might be, so they are the range.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from weft.c3 import Choice, Gemm, Pricer, Scenario, pair_schedule
from weft.errors import WeftError
from weft.simulator import simulate

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.trace import Collective as Recorded

BOUNDS = ("arithmetic", "memory")
_SIDE = 8192
_THIN = 128  # rows of a GEMM that memory bounds
_SMALLEST = 64 << 10  # bytes; below, launches are all there is


class Effect(NamedTuple):
    """How many times as long a collective and the kernels beside it take as launched first."""

    comm: float
    compute: float


def effect(machine: Platform, what: Recorded, strategy: str, bound: str) -> Effect | None:
    """Give the effect of a strategy; None where the pair cannot be carried out so."""
    if not what.nbytes or not what.num_ranks or what.num_ranks < 2:
        return None
    size = max(_SMALLEST, 1 << (what.nbytes - 1).bit_length())
    try:
        return _effect(_Key(machine, what.num_ranks), what.kind, size, strategy, bound)
    except WeftError:  # more ranks than a node, a collective without pairs, no engines
        return None


class _Key:
    """A platform of so many ranks, equal by its name."""

    def __init__(self, machine: Platform, num_ranks: int) -> None:
        self.machine, self.num_ranks = machine, num_ranks

    def __hash__(self) -> int:
        return hash((self.machine.name, self.num_ranks))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and hash(self) == hash(other)


@lru_cache(maxsize=64)
def _pricer(key: _Key) -> Pricer:
    return Pricer(key.machine.resized(key.num_ranks))


@lru_cache(maxsize=4096)
def _effect(key: _Key, kind: str, nbytes: int, strategy: str, bound: str) -> Effect:
    pricer = _pricer(key)
    scenario = _scenario(pricer, kind, nbytes - nbytes % (16 * key.num_ranks), bound)
    base = _ends(pricer, scenario, Choice("priority"))
    plain = Choice(strategy)
    choice = pricer.rule.masks_for(scenario, [strategy])[strategy] if plain.masks else plain
    mine = _ends(pricer, scenario, choice)
    return Effect(mine.comm / base.comm, mine.compute / base.compute)


def _scenario(pricer: Pricer, kind: str, nbytes: int, bound: str) -> Scenario:
    """Choose the GEMM that takes about as long as the collective."""
    dtype = "bf16" if "bf16" in pricer.platform.require_device().flops else "fp16"
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


def _ends(pricer: Pricer, scenario: Scenario, choice: Choice) -> Effect:
    """Simulate a pair; give when the collective was over and how long the GEMM took."""
    timeline = simulate(pair_schedule(scenario, choice, pricer.platform), pricer.platform)
    spans = list(timeline.of(rank=int(timeline.ranks[0])).spans())
    gemm = next(span for span in spans if span.name == "gemm")
    ends = [s.end for s in spans if s.queue not in ("host", gemm.queue)]
    return Effect(max(ends), gemm.end - gemm.start)
