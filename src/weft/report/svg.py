"""Line charts as SVG: linear or logarithmic axes, lines, dashes, dots and a legend; round ticks."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Literal

Style = Literal["line", "dashes", "dots"]
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#6b7280")
_LEFT, _TOP, _BOTTOM = 64, 34, 46
_LEGEND = 178  # of a wide chart: on the right
_NARROW = 500  # below this width the legend is below the chart
_LEGEND_LINE = 16
_PHONE = 340


@dataclass(frozen=True, slots=True)
class Series:
    """Points under one name; equal colour numbers have equal colours."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: Style = "line"
    colour: int = 0
    labels: Sequence[str] = ()  # per dot, shown on hover
    listed: bool = True  # in the legend


@dataclass(frozen=True, slots=True)
class Axis:
    """The title of an axis, the format of its numbers, and its ticks."""

    title: str
    ticks: Sequence[float]
    show: Callable[[float], str] = "{:g}".format
    log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value between the first tick (0) and the last (1)."""
        low, high, at = self.ticks[0], self.ticks[-1], value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        return (at - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    width: int = 760
    height: int = 360

    def svg(self) -> str:
        """Return the SVG text."""
        parts = [*self._grid(), *(self._draw(each) for each in self.series), *self._legend()]
        body = "\n".join(parts)
        height = self.height + ((len(self._listed) + 1) * _LEGEND_LINE if self._is_narrow else 0)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height}" '
            f'width="{self.width}" height="{height}" font-family="sans-serif" '
            f'font-size="12">\n<rect class="paper" width="100%" height="100%" fill="white"/>\n'
            f"{body}\n</svg>\n"
        )

    def figure(self) -> str:
        """Return two versions for a page, for wide and for narrow windows: one of them is shown."""
        narrow = replace(self, width=_PHONE, height=300)
        attributes = f'role="img" aria-label="{escape(self.title)}; the table says it in numbers"'
        return (
            f'<figure class="chart wide" {attributes}>{self.svg()}</figure>\n'
            f'<figure class="chart narrow" {attributes}>{narrow.svg()}</figure>\n'
        )

    @property
    def _is_narrow(self) -> bool:
        return self.width <= _NARROW

    @property
    def _listed(self) -> list[Series]:
        return [series for series in self.series if series.listed]

    def _place(self, x: float, y: float) -> tuple[float, float]:
        right = 16 if self._is_narrow else _LEGEND
        wide, high = self.width - _LEFT - right, self.height - _TOP - _BOTTOM
        return _LEFT + wide * self.x.share(x), _TOP + high * (1 - self.y.share(y))

    def _grid(self) -> list[str]:
        left, bottom = self._place(self.x.ticks[0], self.y.ticks[0])
        right, top = self._place(self.x.ticks[-1], self.y.ticks[-1])
        start = 4 if self._is_narrow else _LEFT
        parts = [_text(start, 20, self.title, "start", "bold")]
        for number, tick in enumerate(self.x.ticks):
            if self._is_narrow and len(self.x.ticks) > 6 and number % 2:
                continue
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
        style = _style(series)
        places = [self._place(x, y) for x, y in zip(series.xs, series.ys, strict=True)]
        if series.style == "dots":
            labels = series.labels or [""] * len(places)
            return "\n".join(
                _dot(*at, style, text) for at, text in zip(places, labels, strict=True)
            )
        dashes = ' stroke-dasharray="5 4"' if series.style == "dashes" else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        return f'<polyline points="{path}" fill="none" stroke-width="2"{dashes} {style}/>'

    def _legend(self) -> list[str]:
        parts = []
        for number, series in enumerate(self._listed):
            x, y = self.width - _LEGEND + 14, _TOP + 14 + _LEGEND_LINE * number
            if self._is_narrow:
                x, y = 8, self.height + 6 + _LEGEND_LINE * number
            if series.style == "dots":
                parts.append(_dot(x + 10, y - 4, _style(series)))
            else:
                dashes = ' stroke-dasharray="5 4"' if series.style == "dashes" else ""
                ends = f'x1="{x}" y1="{y - 4}" x2="{x + 20}" y2="{y - 4}"'
                parts.append(f'<line {ends} stroke-width="2"{dashes} {_style(series)}/>')
            parts.append(_text(x + 26, y, series.name, "start"))
        return parts


def _style(series: Series) -> str:
    """Return inline colours, which the style sheet of a page may override (light, dark)."""
    number = series.colour % len(COLOURS)
    what, name = ("fill", "dot") if series.style == "dots" else ("stroke", "line")
    return f'class="{name}-{number}" {what}="{COLOURS[number]}"'


def _dot(x: float, y: float, style: str, label: str = "") -> str:
    title = f"<title>{escape(label)}</title>" if label else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" {style}>{title}</circle>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="grid" {ends} stroke="#e5e7eb" stroke-width="1"/>'


def _text(
    x: float, y: float, text: str, anchor: str = "middle", weight: str = "", more: str = ""
) -> str:
    bold = ' font-weight="bold"' if weight else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="ink" fill="#111"'
        f"{bold} {more}>{escape(text)}</text>"
    )


def log_ticks(values: Iterable[float], base: int = 10, most: int = 8) -> list[float]:
    """Return powers around positive values, at least two, as many as ``most`` allows.

    >>> log_ticks([3, 500]), log_ticks([1024, 1 << 20], base=2, most=6)
    ([1.0, 10.0, 100.0, 1000.0], [1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0])
    """
    found = [value for value in values if 0 < value < math.inf] or [1.0]
    low = math.floor(math.log(min(found), base) + 1e-9)
    high = max(math.ceil(math.log(max(found), base) - 1e-9), low + 1)
    step = math.ceil((high - low) / (most - 1))
    count = math.ceil((high - low) / step)
    return [float(base) ** (low + step * i) for i in range(count + 1)]
