"""Line charts as SVG text: axes that may be logarithmic, lines, dashes and dots, a legend."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

Style = Literal["line", "dashes", "dots"]
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#6b7280")
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 34, 178, 46  # the legend stands on the right


@dataclass(frozen=True, slots=True)
class Series:
    """Points under one name; the same colour number gives the same colour."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: Style = "line"
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Axis:
    """What is along one side, how its numbers are written, and at which of them ticks stand."""

    title: str
    ticks: Sequence[float]
    show: Callable[[float], str] = "{:g}".format
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value stands between the first tick and the last."""
        low, high, at = self.ticks[0], self.ticks[-1], value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        return (at - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. Names that begin with a dot are drawn and not listed in the legend."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    width: int = 760
    height: int = 360

    def svg(self) -> str:
        """Write it."""
        parts = [*self._grid(), *(self._draw(each) for each in self.series), *self._legend()]
        body = "\n".join(parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="sans-serif" '
            f'font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
        )

    def _place(self, x: float, y: float) -> tuple[float, float]:
        wide, high = self.width - _LEFT - _RIGHT, self.height - _TOP - _BOTTOM
        return _LEFT + wide * self.x.share(x), _TOP + high * (1 - self.y.share(y))

    def _grid(self) -> list[str]:
        left, bottom = self._place(self.x.ticks[0], self.y.ticks[0])
        right, top = self._place(self.x.ticks[-1], self.y.ticks[-1])
        parts = [_text(_LEFT, 20, self.title, "start", "bold")]
        for tick in self.x.ticks:
            at, _ = self._place(tick, self.y.ticks[0])
            parts += [_line(at, bottom, at, top), _text(at, bottom + 16, self.x.show(tick))]
        for tick in self.y.ticks:
            _, at = self._place(self.x.ticks[0], tick)
            parts += [_line(left, at, right, at), _text(left - 6, at + 4, self.y.show(tick), "end")]
        parts.append(_text((left + right) / 2, self.height - 10, self.x.title))
        middle = (top + bottom) / 2
        turned = f'transform="rotate(-90 14 {middle:.0f})"'
        parts.append(_text(14, middle, self.y.title, more=turned))
        return parts

    def _draw(self, series: Series) -> str:
        colour = COLOURS[series.colour % len(COLOURS)]
        points = [self._place(x, y) for x, y in zip(series.xs, series.ys, strict=True)]
        if series.style == "dots":
            return "\n".join(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"/>' for x, y in points
            )
        dashes = ' stroke-dasharray="5 4"' if series.style == "dashes" else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'

    def _legend(self) -> list[str]:
        listed = [series for series in self.series if not series.name.startswith(".")]
        parts = []
        for number, series in enumerate(listed):
            y = _TOP + 14 + 16 * number
            x = self.width - _RIGHT + 14
            colour = COLOURS[series.colour % len(COLOURS)]
            dashes = "5 4" if series.style == "dashes" else ""
            if series.style == "dots":
                parts.append(f'<circle cx="{x + 10}" cy="{y - 4}" r="3.2" fill="{colour}"/>')
            else:
                parts.append(_line(x, y - 4, x + 20, y - 4, colour, 2, dashes))
            parts.append(_text(x + 26, y, series.name, "start"))
        return parts


def _line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    colour: str = "#e5e7eb",
    width: int = 1,
    dashes: str = "",
) -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _text(
    x: float, y: float, text: str, anchor: str = "middle", weight: str = "", more: str = ""
) -> str:
    bold = ' font-weight="bold"' if weight else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#111"{bold} {more}>'
        f"{escape(text)}</text>"
    )
