"""Plots of broadcasts: -m benchmarks.broadcast_plots RESULTS.jsonl FOLDER."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.broadcast import HOSTS
from benchmarks.broadcast_model import BroadcastSize, CodecTimes, Hosts
from weft.collectives import collective
from weft.collectives.chain import piece_bytes
from weft.compress import expected_ratio, is_lossless
from weft.cost.codec import codec_rates, is_priced
from weft.hardware import platform
from weft.report.svg import Axis, Chart, Series
from weft.simulator import simulate
from weft.units import format_size

CODECS = ("none", "pack", "bf16", "int8", "zfp:16")
_SIZES = tuple(1 << power for power in range(20, 27))
_DTYPE = "float32"
_START = 1.5e-3  # seconds: what a broadcast of 4 KiB took on the machine of the results
_RATES = tuple(0.5e9 / 8 * 2**power for power in range(10))
_LARGE = 64 << 20


def main(results: str, folder: str) -> None:
    """Plot measured and predicted times: by size for each rate, and by rate."""
    rows = [json.loads(line) for line in Path(results).read_text("utf-8").splitlines()]
    charts = {f"broadcast-{rate}": by_size(rate, rows) for rate in ("1gbit", "10gbit")}
    for name, chart in {**charts, "broadcast-rates": by_rate()}.items():
        path = Path(folder) / f"{name}.svg"
        path.write_text(chart.svg(), encoding="utf-8")
        print(path)


def by_size(rate: str, rows: Sequence[dict[str, Any]]) -> Chart:
    """Time against size on links of one rate; hosts that share two cores."""
    found, hosts = measured(rate, rows), _calibrated(rate, rows)
    series = []
    for colour, codec in enumerate(CODECS):
        times = [1e3 * hosts.seconds(*_sent_by(codec, nbytes)) for nbytes in _SIZES]
        series.append(Series(codec, _SIZES, times, colour=colour))
        dots = {nbytes: 1e3 * each for (name, nbytes), each in found.items() if name == codec}
        series.append(Series(codec, list(dots), list(dots.values()), "dots", colour, listed=False))
    x = Axis("fp32 weights", _SIZES[::2], lambda size: format_size(int(size)), log=True)
    y = Axis("ms", (1, 10, 100, 1000, 10000), log=True)
    title = f"Broadcast to {HOSTS} hosts that share two cores, {rate}: measured and predicted"
    return Chart(title, x, y, series)


def _calibrated(rate: str, rows: Sequence[dict[str, Any]]) -> Hosts:
    """Learn from the last plain chain."""
    hosts = Hosts(HOSTS, 2, float(rate.removesuffix("gbit")) * 1e9 / 8, _START)
    plain = [
        (case["nbytes"], row) for case, row in _plain_rows(rate, rows) if case["codec"] == "none"
    ]
    if not plain:
        return hosts
    nbytes, row = plain[-1]
    piece = row.get("piece_bytes") or piece_bytes(nbytes)
    return hosts.calibrated(row["median"], BroadcastSize(nbytes, nbytes, piece))


def by_rate() -> Chart:
    """Time against the rate of the links, by hosts that have cores of their own."""
    series = []
    for colour, codec in enumerate(CODECS):
        times = [1e3 * _alone(codec, rate) for rate in _RATES]
        series.append(Series(codec, [8 * rate / 1e9 for rate in _RATES], times, colour=colour))
    x = Axis("Gbit/s", [8 * rate / 1e9 for rate in _RATES], log=True)
    y = Axis("ms", (1, 10, 100, 1000, 10000), log=True)
    title = f"Broadcast of {format_size(_LARGE)} to {HOSTS} hosts, each with its cores: simulated"
    return Chart(title, x, y, series)


def measured(rate: str, rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int], float]:
    """Return the last medians of weights sent along the chain, by codec and size."""
    return {(case["codec"], case["nbytes"]): row["median"] for case, row in _plain_rows(rate, rows)}


def _plain_rows(
    rate: str, rows: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    wanted = {"rate": rate, "data": "weights", "dtype": _DTYPE, "algorithm": "chain"}
    for row in rows:
        case = row["case"]
        if wanted.items() <= case.items() and not case.get("keep_root"):
            yield case, row


def _sent_by(codec: str, nbytes: int) -> tuple[BroadcastSize, CodecTimes]:
    ratio = _ratio(codec)
    piece = piece_bytes(nbytes, None if codec == "none" else ratio)
    coded = CodecTimes(f"chain+{codec}", _DTYPE)
    if is_priced(codec):
        rates = codec_rates(codec, None)
        encode, decode = nbytes / rates.encode, nbytes / rates.decode
        coded = CodecTimes(f"chain+{codec}", _DTYPE, encode, decode, is_lossless(codec))
    return BroadcastSize(nbytes, int(nbytes / ratio), piece), coded


def _alone(codec: str, rate: float) -> float:
    """Take the best of some lengths of pieces."""
    where = platform(f"switch({HOSTS})@{rate / 1e6:.6f}MB/s,20us")
    options: dict[str, Any] = {"num_ranks": HOSTS, "nbytes": _LARGE, "dtype": _DTYPE}
    made = (
        collective(
            "broadcast", f"chain+{codec}", piece=_LARGE // count, ratio=_ratio(codec), **options
        )
        for count in (16, 64, 256)
    )
    return min(simulate(schedule, where).makespan for schedule in made)


def _ratio(codec: str) -> float:
    return 1.0 if codec == "none" else expected_ratio(codec, _DTYPE)


if __name__ == "__main__":
    main(*sys.argv[1:])
