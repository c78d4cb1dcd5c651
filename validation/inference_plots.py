"""Plots of a server that fetches cached blocks: what a block costs, what each way gains."""

from __future__ import annotations

import math
from dataclasses import replace

from weft.hardware import platform
from weft.models.transformer import Piece
from weft.models.zoo import MODELS
from weft.report.svg import Axis, Chart, Series
from weft.serving import Forward, Load, Question
from weft.units import format_size

BLOCKS = tuple(1 << power for power in range(11, 22))
_TICKS = tuple(1 << power for power in (11, 13, 15, 17, 19, 21))
WAYS = ("per-copy", "batched", "b2b", "kernel", "recompute")
SUMS = ("library", "dma", "fused")


def plots() -> dict[str, Chart]:
    """Draw all of them, by name."""
    return {
        "first-token": _served("ttft_alone"),
        "throughput": _served("throughput"),
        "sums": _sums(),
    }


def _served(key: str) -> Chart:
    """Return one model with blocks of every size, by each way."""
    model, machine = replace(MODELS["llama-70b"], tp=8), platform("mi300x-8")
    load = Load(32, 4096, 64, 0.9, math.inf)
    rows = [
        Question("llama-70b", model, machine, load, block_bytes=size).rows(WAYS) for size in BLOCKS
    ]
    first = key == "ttft_alone"
    scale = 1e3 if first else 1.0
    series = [
        Series(way, BLOCKS, [scale * row[number][key] for row in rows], "line", number)
        for number, way in enumerate(WAYS)
    ]
    x = Axis("block", _TICKS, format_size, log=True)
    if first:
        y = Axis("ms to the first token", (10, 30, 100, 300, 1000), log=True)
    else:
        y = Axis("tokens a second", (0, 1000, 2000, 3000))
    title = "first token of a request alone" if first else "32 requests at once"
    return Chart(f"llama-70b on 8 MI300X, 90 % of 4096 tokens cached: {title}", x, y, series)


def _sums() -> Chart:
    """Return a token for each of a few sequences: how sums over ranks are made."""
    model, machine = replace(MODELS["llama-70b"], tp=8), platform("mi300x-8")
    batches = [1, 2, 4, 8, 16, 32, 64, 128]
    series = []
    for number, name in enumerate(SUMS):
        forward = Forward(model, machine, name)
        taken = [1e3 * forward.seconds((Piece(batch, 1, 2048),)) for batch in batches]
        series.append(Series(name, batches, taken, "line", number))
    x = Axis("sequences", (1, 2, 4, 8, 16, 32, 64, 128), log=True)
    y = Axis("ms between tokens", (0, 5, 10, 15, 20, 25))
    return Chart("llama-70b on 8 MI300X: a token for each, sums over ranks by", x, y, series)
