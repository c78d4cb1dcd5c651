"""Plots docs/nccl.svg: bus bandwidth of H100 by the fitted curves, with measurements."""

import sys
from collections.abc import Iterator
from math import log2
from pathlib import Path

from validation.nccl_tables import Cell, data_folder, read_cells
from weft.cost.bus import bus_factor
from weft.cost.nccl import library_price
from weft.hardware import platform
from weft.units import format_size

OUTPUT = Path(__file__).parents[1] / "docs" / "nccl.svg"
VERSION = "2.29.2"
KINDS = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
COLOURS = {2: "#4c78a8", 4: "#f58518", 8: "#54a24b"}
WIDTH, HEIGHT, MARGIN = 380, 230, 46  # of one panel
SMALLEST, LAST_FITTED, LARGEST = 9.0, 29.0, 34.0  # powers of two
FASTEST = 500e9


def main() -> int:
    """Draw four panels, one a collective."""
    folder = data_folder()
    if folder is None:
        print("the measured tables are not here: set WEFT_DATA to their folder", file=sys.stderr)
        return 1
    cells = [c for c in read_cells(folder, "h100_sxm") if c.version == VERSION]
    panels = "".join(
        f'<g transform="translate({number % 2 * WIDTH},{number // 2 * HEIGHT})">'
        + "".join(_panel(kind, [c for c in cells if c.collective == kind and c.dtype == "half"]))
        + "</g>"
        for number, kind in enumerate(KINDS)
    )
    OUTPUT.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {2 * HEIGHT}" '
        f'font-family="sans-serif" font-size="10"><rect width="100%" height="100%" fill="white"/>'
        f"{panels}</svg>\n",
        encoding="utf-8",
    )
    print(f"wrote {OUTPUT.name}")
    return 0


def _panel(kind: str, cells: list[Cell]) -> Iterator[str]:
    yield f'<text x="{MARGIN}" y="14" font-weight="bold">{kind}, bus rate, GB/s</text>'
    for tick in range(0, 501, 100):
        y = _y(tick * 1e9)
        yield f'<path d="M{MARGIN},{y:.1f}H{WIDTH - 10}" stroke="#ddd"/>'
        yield f'<text x="{MARGIN - 6}" y="{y + 3:.1f}" text-anchor="end">{tick}</text>'
    for power in range(10, 35, 4):
        at = f'x="{_x(power):.1f}" y="{HEIGHT - 14}"'
        yield f'<text {at} text-anchor="middle">{format_size(2**power)}</text>'
    edge = f"M{_x(LAST_FITTED):.1f},{_y(FASTEST):.1f}V{_y(0):.1f}"
    yield f'<path d="{edge}" stroke="#999" stroke-dasharray="3"/>'
    for index, (num_ranks, colour) in enumerate(COLOURS.items()):
        yield f'<path d="M{_line(kind, num_ranks)}" fill="none" stroke="{colour}"/>'
        for cell in cells:
            if cell.num_ranks == num_ranks:
                rate = _bus_rate(kind, num_ranks, cell.nbytes, cell.seconds)
                spot = f'cx="{_x(log2(cell.nbytes)):.1f}" cy="{_y(rate):.1f}"'
                yield f'<circle {spot} r="2.2" fill="{colour}"/>'
        label = f'x="{MARGIN + 8}" y="{32 + 13 * index}" fill="{colour}"'
        yield f"<text {label}>{num_ranks} ranks</text>"


def _line(kind: str, num_ranks: int) -> str:
    machine = platform("h100-8", num_ranks=num_ranks)
    powers = [SMALLEST + step / 8 for step in range(int(8 * (LARGEST - SMALLEST)) + 1)]
    sizes = [int(2**power) for power in powers]
    prices = [library_price(machine, kind, nbytes, version=VERSION).seconds for nbytes in sizes]
    rates = [_bus_rate(kind, num_ranks, b, s) for b, s in zip(sizes, prices, strict=True)]
    return "L".join(f"{_x(p):.1f},{_y(r):.1f}" for p, r in zip(powers, rates, strict=True))


def _bus_rate(kind: str, num_ranks: int, nbytes: int, seconds: float) -> float:
    return nbytes / seconds * bus_factor(kind, num_ranks)


def _x(power: float) -> float:
    return MARGIN + (power - SMALLEST) / (LARGEST - SMALLEST) * (WIDTH - MARGIN - 20)


def _y(rate: float) -> float:
    return HEIGHT - 30 - rate / FASTEST * (HEIGHT - 54)


if __name__ == "__main__":
    raise SystemExit(main())
