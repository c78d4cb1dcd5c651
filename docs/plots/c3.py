# ruff: noqa: INP001 - a script, no package
"""Draw the four panels of docs/plots/c3.svg: run it again when the model changes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.c3 import GEMMS, Pricer
from weft.cost.gemm import refetched
from weft.hardware import platform
from weft.validate.c3 import MEANS, mean_percent, priced_list

WIDTH, HEIGHT, GAP = 380, 230, 60
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
Points = list[tuple[float, float]]


class Panel(NamedTuple):
    """Axes from zero or below up to a limit, with lines in them."""

    title: str
    across: tuple[str, float]
    up: tuple[str, float, float]
    lines: dict[str, Points]


def draw(panel: Panel, left: int, top: int) -> str:
    """Draw one panel with its lines and their names."""
    name_x, most = panel.across
    name_y, low, high = panel.up

    def place(x: float, y: float) -> tuple[float, float]:
        return left + x / most * WIDTH, top + HEIGHT - (y - low) / (high - low) * HEIGHT

    parts = [
        f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
        text(left, top - 12, panel.title, size=15),
        text(left + WIDTH / 2, top + HEIGHT + 34, name_x, anchor="middle"),
        text(left + 6, top + 16, name_y),
    ]
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        parts.append(text(left - 6, place(0, value)[1] + 4, f"{value:g}", anchor="end"))
        parts.append(text(place(share * most, 0)[0], top + HEIGHT + 16, f"{share * most:g}"))
    for number, (name, points) in enumerate(panel.lines.items()):
        colour = COLOURS[number]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(left + 14, top + 38 + 17 * number, name, colour=colour))
    return "\n".join(parts)


def text(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = "#222"
) -> str:
    """Write words at a place."""
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style} font-family="sans-serif">{words}</text>'


def lost_units() -> Panel:
    """What a GEMM loses with its units: steps of waves, and a little less traffic."""
    rule = Pricer(platform("mi300x-8")).rule
    lines: dict[str, Points] = {"linear": [(k, 100 * k / (304 - k)) for k in range(129)]}
    for name, kind in (("cb1", "compute bound"), ("mb2", "memory bound")):
        whole = rule.gemm(GEMMS[name], 0).seconds
        lines[f"{name}, {kind}"] = [
            (k, 100 * (rule.gemm(GEMMS[name], k).seconds / whole - 1)) for k in range(129)
        ]
    return Panel("Waves", ("units lost of 304", 128), ("% slower", -10, 90), lines)


def crowded_sets() -> Panel:
    """How suddenly a cache with room has none."""
    filled = np.linspace(0, 2, 100)
    shares = 100 * refetched(filled, 16)
    lines = {"16 ways": list(zip(filled.tolist(), shares.tolist(), strict=True))}
    across, up = ("live lines / lines of the L2", 2), ("% of lines fetched twice", 0, 100)
    return Panel("Cache pressure", across, up, lines)


def loaded_movers() -> Panel:
    """What load leaves of a collective: engines see memory, units the L2 as well."""
    side = Pricer(platform("mi300x-8")).rule
    loads = np.linspace(0, 1, 50).tolist()
    engines = side.comm("all_gather", by_engines=True)
    units = side.comm("all_gather", by_engines=False)
    lines = {
        "7 engines": [(load, engines.rate(32, load, 0.0) / 1e9) for load in loads],
        "32 units, L2 as busy": [(load, units.rate(32, load, load) / 1e9) for load in loads],
        "16 units, L2 as busy": [(load, units.rate(16, load, load) / 1e9) for load in loads],
    }
    return Panel("Load", ("load of the memory", 1), ("GB/s of a rank", 0, 600), lines)


def means() -> Panel:
    """The published means and weft's, strategy by strategy."""
    rows = priced_list(platform("mi300x-8"))
    names = list(MEANS)
    lines = {
        "published": [(float(n), MEANS[name]) for n, name in enumerate(names)],
        "weft": [(float(n), mean_percent(rows, name)) for n, name in enumerate(names)],
    }
    across = "concurrent, priority, partition, prio+part, dma, dma+part"
    return Panel("Mean percent of ideal", (across, len(names) - 1), ("%", 0, 100), lines)


def main() -> None:
    """Write the picture beside this file."""
    panels = (lost_units(), crowded_sets(), loaded_movers(), means())
    width, height = 2 * (WIDTH + GAP) + GAP, 2 * (HEIGHT + 2 * GAP)
    drawn = [
        draw(panel, GAP + n % 2 * (WIDTH + GAP), GAP + n // 2 * (HEIGHT + 2 * GAP))
        for n, panel in enumerate(panels)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    back = f'<rect width="{width}" height="{height}" fill="white"/>'
    whole = "\n".join([head, back, *drawn, "</svg>"])
    Path(__file__).with_suffix(".svg").write_text(whole + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
