"""Computation fused with its collective: arXiv 2305.06942, MI210 in one node and in several."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from validation.fused_cases import COMBINES, EMBEDDINGS, GEMVS, SLICES
from validation.fused_plots import plots
from validation.fused_prices import (
    OCCUPANCY,
    apart_nodes,
    library_units,
    percent_saved,
    saved_by_embedding,
    saved_by_step,
)
from validation.target import Target
from weft.fused import (
    apart_all_reduce,
    apart_all_to_all,
    fused_all_reduce,
    fused_all_to_all,
)
from weft.hardware import platform
from weft.schedule import CommandKind
from weft.simulator import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from validation.fused_cases import Product
    from validation.fused_dlrm import Embedding
    from weft.hardware import Platform

__all__ = ["NAME", "QUESTION", "plots", "targets"]

NAME = "fused"
QUESTION = "What does sending each slice as it is made save?"
SOURCE = "arXiv 2305.06942"
POINTS = 8.0  # how far a mean may be from the published one: the shapes are not those of the study

# name: (published mean, published best)
PUBLISHED = {
    "embedding_all_to_all/intra": (25.0, 35.0),
    "embedding_all_to_all/inter": (31.0, 58.0),
    "gemv_all_reduce": (13.0, 22.0),
    "gemm_all_to_all": (12.0, 20.0),
}
_target = partial(Target, source=SOURCE, unit="%")


def targets() -> Iterator[Target]:
    """Compute the figures."""
    node = platform("mi210-4")
    pair = apart_nodes(node, 2)
    yield from _saved(
        "embedding_all_to_all/intra", [saved_by_embedding(e, node) for e in EMBEDDINGS]
    )
    yield from _saved(
        "embedding_all_to_all/inter", [saved_by_embedding(e, pair) for e in EMBEDDINGS]
    )
    yield from _saved("gemv_all_reduce", [_gemv(each, node) for each in GEMVS])
    yield from _saved("gemm_all_to_all", [_combine(each, node) for each in COMBINES])
    yield _step(node, 128)
    yield from _skews(pair)


def _saved(name: str, shares: Sequence[float]) -> Iterator[Target]:
    mean, best = PUBLISHED[name]
    note = f"{len(shares)} shapes, none of them fitted to"
    yield _target(
        "mean", name, mean, weft=fmean(shares), allowed=POINTS, error_in="points", note=note
    )
    note = "an envelope: the best of their shapes compared with the best of ours"
    yield _target("envelope", name, best, weft=max(shares), error_in="points", note=note)


def _combine(shape: Product, machine: Platform) -> float:
    work = shape.sliced(machine.num_ranks)
    fused = fused_all_to_all(work, units=machine.require_device().units)
    return percent_saved(fused, apart_all_to_all(work, units=library_units(machine)), machine)


def _gemv(shape: Product, machine: Platform) -> float:
    """Return a vector is short: two slices for each rank are as small as a store is worth."""
    work = shape.sliced(machine.num_ranks, 2)
    fused = fused_all_reduce(work, units=machine.require_device().units, dtype="bfloat16")
    apart = apart_all_reduce(work, units=library_units(machine), dtype="bfloat16")
    return percent_saved(fused, apart, machine)


def _step(node: Platform, num_nodes: int) -> Target:
    saved = saved_by_step(node, num_nodes)
    note = "lookups of the forward pass are fused, on one MI210 a node"
    name = f"dlrm/{num_nodes}"
    return _target("mean", name, 10.0, weft=saved, allowed=POINTS, error_in="points", note=note)


def _skews(pair: Platform) -> Iterator[Target]:
    """Yield how much later one node has its results than the other."""
    for remote_first, published in ((False, 7.0), (True, 1.0)):
        found = fmean(_skew(shape, pair, remote_first=remote_first) for shape in EMBEDDINGS)
        name = "remote first" if remote_first else "in the order of ranks"
        note = "how much later one of two nodes has its results, of the time"
        yield _target(
            "skew", name, published, weft=found, allowed=2.0, error_in="points", note=note
        )


def _skew(shape: Embedding, pair: Platform, *, remote_first: bool) -> float:
    units = pair.require_device().units
    work = shape.sliced(pair.num_ranks, SLICES)
    schedule = fused_all_to_all(work, units=units, remote_first=remote_first, occupancy=OCCUPANCY)
    timeline = simulate(schedule, pair)
    ends = [timeline.of(rank=int(r), kind=CommandKind.WAIT).makespan for r in timeline.ranks]
    return 100 * (max(ends) - min(ends)) / timeline.makespan
