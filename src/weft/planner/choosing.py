"""Choosing a way for each pair: each by itself at once, or all together by walking the step.

A pair by itself is the kernels that run beside its collective, what of the collective they do not
hide, and by how much it slows them. That is the heuristic, and where a search starts: it changes
one pair at a time to what makes the whole step fastest, until nothing does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.planner.plan import Alternative
    from weft.planner.step_price import StepPricer
    from weft.planner.ways import Pair, Way

_ROUNDS = 3
_AS_GOOD = 1.005  # simulated pairs that close are equal
_BETTER = 1 - 1e-4  # less than that is no reason to change anything


@dataclass(frozen=True, slots=True)
class Offer:
    """A pair, what torch does with it, the other ways there are, and those there are not."""

    pair: Pair
    base: Way
    ways: tuple[Way, ...]
    refused: tuple[Alternative, ...]

    def seconds(self, way: Way) -> float:
        """Give the pair by itself: kernels beside, what they do not hide, how they are slowed."""
        if way.pair is not None:
            return way.pair
        window = self.pair.hidden * self.base.alone.seconds
        # Lookups that a fused operator would do are part of the pair; nothing runs beside them.
        more = 0.0 if way.freed else min((x.seconds_now for x in self.pair.lookups), default=0.0)
        if way.serial:
            return more + window + way.alone.seconds
        took = way.alone.seconds * (1 + self.pair.hidden * (way.beside - 1))
        lost = min(took, window) * (way.compute - 1)
        if way.slices:
            took -= min(took, self.pair.making) * (1 - 1 / way.slices)
            took += self.pair.making * (way.producer - 1)
        return more + max(window + lost, took)


def heuristic(offers: Sequence[Offer]) -> list[Way]:
    """Choose for each pair by itself; of equals what changes least."""
    return [_first(offer) for offer in offers]


def _first(offer: Offer) -> Way:
    best = min(offer.seconds(way) for way in offer.ways)
    if offer.seconds(offer.base) * _BETTER <= best:
        return offer.base
    return next(way for way in offer.ways if offer.seconds(way) <= best * 1.001)


def search(offers: Sequence[Offer], pricer: StepPricer, start: Sequence[Way]) -> list[Way]:
    """Change one pair after the other to what makes the whole step fastest."""
    chosen = list(start)
    best = _step(offers, chosen, pricer)
    for _ in range(_ROUNDS):
        before = best
        for number, offer in enumerate(offers):
            for way in _worth_trying(offer):
                if way == chosen[number]:
                    continue
                tried = [*chosen[:number], way, *chosen[number + 1 :]]
                seconds = _step(offers, tried, pricer)
                if seconds < best * _BETTER:
                    best, chosen = seconds, tried
        if best >= before * _BETTER:
            break
    return chosen


def without_losses(offers: Sequence[Offer], pricer: StepPricer, ways: Sequence[Way]) -> list[Way]:
    """Take back what the whole step does not gain by: a plan is never slower than none."""
    base = [offer.base for offer in offers]
    limit = _step(offers, base, pricer)
    chosen = list(ways)
    for number, offer in enumerate(offers):
        if chosen[number] == offer.base:
            continue
        back = [*chosen[:number], offer.base, *chosen[number + 1 :]]
        if _step(offers, back, pricer) * _BETTER <= _step(offers, chosen, pricer):
            chosen = back
    return chosen if _step(offers, chosen, pricer) <= limit else base


def _step(offers: Sequence[Offer], ways: Sequence[Way], pricer: StepPricer) -> float:
    return pricer.seconds([(offer.pair, way) for offer, way in zip(offers, ways, strict=True)])


def _worth_trying(offer: Offer) -> list[Way]:
    """Leave out ways that another is at least as good as in everything.

    Where the pair itself was priced, only those that are as good as the best are left.
    """
    found: list[Way] = []
    ways = sorted((offer.base, *offer.ways), key=offer.seconds)
    if ways[0].pair is not None:
        ways = [way for way in ways if offer.seconds(way) <= _AS_GOOD * offer.seconds(ways[0])]
    for way in ways:
        if not any(_covers(other, way) for other in found):
            found.append(way)
    return found


def _covers(one: Way, other: Way) -> bool:
    """Whether one way is no slower than another, alone or beside kernels, and slows them less."""
    if one.slices < other.slices or (one.serial and not other.serial):
        return False
    if other.freed and not one.freed:
        return False
    mine, theirs = one.alone.seconds, other.alone.seconds
    quicker = mine <= theirs and mine * one.beside <= theirs * other.beside
    loss = (one.compute - 1) * mine * one.beside <= (other.compute - 1) * theirs * other.beside
    return quicker and loss and one.producer <= other.producer
