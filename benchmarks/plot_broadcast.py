"""Draw docs/plots/broadcast-*.svg: time against size by codec, measured and simulated.

python benchmarks/plot_broadcast.py
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from weft.report.svg import Axis, Chart, Series
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
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:  # the last of a case is the newest
        size, codec = row["case"]["nbytes"], row["case"]["codec"]
        lines[f"weft, {codec}"][size] = row["median"]
        for peer, found in row["peers"].items():
            lines[peer][size] = found["seconds"]
    series = [
        Series(
            name,
            sorted(points),
            [1e3 * points[size] for size in sorted(points)],
            "line" if name.startswith("weft") else "dashes",
            number,
        )
        for number, (name, points) in enumerate(lines.items())
    ]
    sizes = Axis("size", SIZES, format_size, log=True)
    times = Axis("ms", TIMES[rate], log=True)
    return Chart(f"Broadcast to 4 hosts, trained weights, {rate}", sizes, times, series)


if __name__ == "__main__":
    main()
