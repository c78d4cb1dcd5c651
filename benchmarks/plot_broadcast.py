"""Draw docs/plots/broadcast-*.svg: time against size by codec, measured and simulated.

python benchmarks/plot_broadcast.py
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from weft.bench.broadcast import HOSTS
from weft.bench.foretold import Link
from weft.collectives.pieces import piece_bytes
from weft.report.svg import Axis, Chart, Series, Style
from weft.units import format_size

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "broadcast.jsonl"
OUTPUT = ROOT / "docs" / "plots"
SIZES = tuple(1 << power for power in (20, 22, 24, 26))
TIMES = {"1gbit": (1, 10, 100, 1000, 10000), "10gbit": (1, 10, 100, 1000)}
CODECS = ("none", "pack", "bf16", "int8")


def main() -> None:
    """Draw a chart for each rate that was measured."""
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    for rate in TIMES:
        mine = [row for row in rows if row["case"]["rate"] == rate and _is_shown(row["case"])]
        if mine:
            path = OUTPUT / f"broadcast-{rate}.svg"
            path.write_text(_chart(rate, mine).svg(), encoding="utf-8")
            print(f"wrote {path.name}")


def _is_shown(case: dict[str, Any]) -> bool:
    usual = case["data"] == "weights" and case["dtype"] == "float32" and "keep_root" not in case
    return usual and case["algorithm"] == "chain" and case["codec"] in CODECS


def _chart(rate: str, rows: list[dict[str, Any]]) -> Chart:
    """Dots were measured; lines are simulated, on links that the newest plain chain calibrates."""
    dots: dict[str, dict[int, float]] = defaultdict(dict)
    ratios: dict[str, float] = {}
    for row in rows:  # the last of a case is the newest
        size, codec = row["case"]["nbytes"], row["case"]["codec"]
        dots[f"weft, {codec}"][size] = row["median"]
        ratios[codec] = size / row["wire_bytes"]
        for peer, found in row["peers"].items():
            dots[peer][size] = found["seconds"]
    size, seconds = max(dots["weft, none"].items())
    link = Link.from_plain(seconds, HOSTS, size, piece_bytes(size))
    series = []
    for number, (name, points) in enumerate(dots.items()):
        series.append(_series(name, points, "dots", number))
        codec = name.removeprefix("weft, ")
        if codec in ratios:
            simulated = {each: _simulated(link, codec, each, ratios[codec]) for each in SIZES}
            series.append(_series(f".{name}", simulated, "line", number))
    sizes = Axis("size", SIZES, format_size, log=True)
    times = Axis("ms", TIMES[rate], log=True)
    return Chart(f"Broadcast to 4 hosts, trained weights, {rate}", sizes, times, series)


def _simulated(link: Link, codec: str, size: int, ratio: float) -> float:
    piece = piece_bytes(size, None if codec == "none" else ratio)
    return link.seconds(codec, HOSTS, size, piece, 1.0 if codec == "none" else ratio)


def _series(name: str, points: dict[int, float], style: Style, number: int) -> Series:
    sizes = sorted(points)
    return Series(name, sizes, [1e3 * points[size] for size in sizes], style, number)


if __name__ == "__main__":
    main()
