"""Plots of what fusing saves: by pooling, and by the number of nodes of a DLRM step."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from validation.fused_cases import EMBEDDINGS
from validation.fused_prices import apart_nodes, saved_by_embedding, saved_by_step
from weft.hardware import platform
from weft.report.svg import Axis, Chart, Series

if TYPE_CHECKING:
    from weft.hardware import Platform

NODES = (2, 4, 8, 16, 32, 64, 128, 512, 4096)
_PERCENT = Axis("time saved, %", (0, 10, 20, 30, 40, 50))


def plots() -> dict[str, Chart]:
    """Draw all of them, by name."""
    node = platform("mi210-4")
    machines = {"4 GPUs of one node": node, "2 nodes, InfiniBand": apart_nodes(node, 2)}
    pooling = sorted({shape.pooling for shape in EMBEDDINGS})
    series = [
        Series(name, pooling, [_mean(count, machine) for count in pooling], colour=number)
        for number, (name, machine) in enumerate(machines.items())
    ]
    x = Axis("rows in a bag", (0, *pooling))
    return {
        "pooling": Chart("Embedding + all-to-all, fused", x, _PERCENT, series),
        "step": _step(node),
    }


def _mean(pooling: int, machine: Platform) -> float:
    shapes = [shape for shape in EMBEDDINGS if shape.pooling == pooling]
    return fmean(saved_by_embedding(shape, machine) for shape in shapes)


def _step(node: Platform) -> Chart:
    saved = [saved_by_step(node, num_nodes) for num_nodes in NODES]
    x = Axis("nodes", (2, 16, 128, 1024, 4096), log=True)
    y = Axis("time saved, %", (0, 5, 10, 15, 20))
    return Chart("DLRM step, lookups fused", x, y, [Series("one MI210 a node", NODES, saved)])
