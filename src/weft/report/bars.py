"""Horizontal bar charts as HTML: readable at any width, without a script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from weft.units import format_time


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One bar: its name, its parts in order (by the name of the part), and the text at its end.

    ``low`` and ``high`` draw a range over it.
    """

    name: str
    parts: Mapping[str, float]
    total: str = ""
    low: float | None = None
    high: float | None = None


def bar_chart(
    items: Sequence[ChartBar],
    kinds: Mapping[str, str],
    *,
    label: str,
    line: float | None = None,
) -> str:
    """Draw bars to one scale; ``kinds`` maps parts to styles, ``line`` marks one value."""
    longest = max((max(sum(item.parts.values()), item.high or 0.0) for item in items), default=0.0)
    scale = 100 / max(longest, line or 0.0, 1e-300)
    used = {part for item in items for part, value in item.parts.items() if value > 0}
    rows = "\n".join(_bar(item, kinds, scale, line) for item in items)
    return (
        f'<figure role="img" aria-label="{escape(label)}; the table says it in numbers">'
        f"{_legend({part: kind for part, kind in kinds.items() if part in used})}"
        f'<div class="bars">\n{rows}\n</div></figure>\n'
    )


def _legend(kinds: Mapping[str, str]) -> str:
    items = "".join(
        f'<li><i class="k-{kind}"></i>{escape(part)}</li>' for part, kind in kinds.items()
    )
    return f'<ul class="legend">{items}</ul>' if len(kinds) > 1 else ""


def _bar(
    item: ChartBar,
    kinds: Mapping[str, str],
    scale: float,
    line: float | None,
) -> str:
    whole = sum(item.parts.values())
    pieces = "".join(
        f'<i class="k-{kinds[part]}" style="width:{value * scale:.3f}%" '
        f'title="{escape(f"{part}: {format_time(value)} ({100 * value / whole:.0f} %)")}"></i>'
        for part, value in item.parts.items()
        if value > 0
    )
    if item.low is not None and item.high is not None:
        wide = max(item.high - item.low, 0.0) * scale
        pieces += f'<b style="left:{item.low * scale:.3f}%;width:{wide:.3f}%"></b>'
    if line is not None:
        pieces += f'<u style="left:min({line * scale:.3f}%, 100% - 2px)"></u>'
    return (
        f'<span class="name" title="{escape(item.name)}">{escape(item.name)}</span>'
        f'<span class="track">{pieces}</span><span class="total">{escape(item.total)}</span>'
    )
