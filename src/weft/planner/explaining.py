"""Choices in words: one line for what was chosen, and one for each way that was not."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from weft.planner.plan import Alternative, Choice
from weft.units import format_size, format_time

if TYPE_CHECKING:
    from weft.planner.choosing import Offer
    from weft.planner.ways import Pair, Way


def choice_of(offer: Offer, way: Way, gain: float) -> Choice:
    """Write down what was chosen for a pair."""
    pair, seconds = offer.pair, offer.seconds(way)
    alone = way.alone
    first = pair.members[0]
    return Choice(
        pair=name_of(pair),
        op=first[1],
        collective=pair.what,
        strategy=way.strategy,
        settings=dict(way.settings),
        seconds=seconds,
        low=seconds * alone.low / alone.seconds if alone.seconds else seconds,
        high=seconds * alone.high / alone.seconds if alone.seconds else seconds,
        gain=gain,
        why=why(offer, way),
        alternatives=_alternatives(offer, way),
        step=first[0],
        ops=tuple(number for rank_class, number in pair.members if rank_class == first[0]),
        phase=pair.phase,
    )


def name_of(pair: Pair) -> str:
    """Name a pair by its collective and what runs beside it."""
    what = pair.what
    text = f"{what.kind} {format_size(what.nbytes)}"
    if what.group != "world":
        text += f" of {what.group}"
    if pair.phase:
        text += f", {pair.phase}"
    if pair.beside:
        return f"{text}, beside {pair.beside}"
    return f"{text}, after {pair.made_by}" if pair.made_by else text


def why(offer: Offer, way: Way) -> str:
    """Say what decided, in a line."""
    base = offer.base
    if way == base:
        hidden = offer.pair.hidden
        if hidden > 0.95:
            return "already hidden by what runs beside it"
        if min(map(offer.seconds, offer.ways), default=inf) < 0.99 * offer.seconds(base):
            return "the step does not wait for it: a faster way gains nothing"
        return "nothing that can be done here is faster"
    parts = [way.why] if way.why else []
    before, after = (
        base.alone.seconds * _beside(offer, base),
        way.alone.seconds * _beside(offer, way),
    )
    if not way.slices and after < before * 0.99:
        parts.append(f"{format_time(after)} instead of {format_time(before)}")
    if base.compute > way.compute * 1.002:
        parts.append(f"kernels beside it {_slower(way.compute)}, not {_slower(base.compute)}")
    elif way.compute > base.compute * 1.002:
        parts.append(f"kernels beside it {_slower(way.compute)}")
    return "; ".join(parts) or "the whole step is faster with it"


def _beside(offer: Offer, way: Way) -> float:
    return 1.0 if way.serial else 1 + offer.pair.hidden * (way.beside - 1)


def _slower(times: float) -> str:
    return f"{100 * (times - 1):.0f} % slower" if times >= 1.005 else "as fast as alone"


def _alternatives(offer: Offer, chosen: Way) -> tuple[Alternative, ...]:
    """List other ways, the fastest of each strategy first, then what cannot be done."""
    mine = offer.seconds(chosen)
    best: dict[str, Way] = {}
    for way in sorted((offer.base, *offer.ways), key=offer.seconds):
        if way != chosen:
            best.setdefault(f"{way.strategy}{way.settings.get('backend', '')}", way)
    return (
        *(
            Alternative(
                way.strategy, dict(way.settings), offer.seconds(way), _not(offer, way, mine)
            )
            for way in best.values()
        ),
        *offer.refused,
    )


def _not(offer: Offer, way: Way, mine: float) -> str:
    seconds = offer.seconds(way)
    if seconds > mine * 1.001:
        return f"the pair takes {format_time(seconds)}, not {format_time(mine)}"
    if seconds < mine * 0.999:
        return "quicker by itself, but the whole step gains no more by it"
    return "no faster, and asks for more"
