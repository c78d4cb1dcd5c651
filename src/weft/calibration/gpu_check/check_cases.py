"""What a check measures, and what weft predicts of it before anything has run.

Cases for calibration and cases held out are told apart here, before they are measured: products and
collectives of other sizes, and overlaps. The predictions are written to the result file first, and
their SHA-256 is printed, so that nobody can change them after the run.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.planner.predict import predict_seconds
from weft.planner.prices import Prices, default_library
from weft.schedule import Cost
from weft.step import NO_HOST, Collective, Op, RankStep, StepGraph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weft.hardware import Platform

Dimensions = tuple[int, int, int]
MiB = 1 << 20
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@dataclass(frozen=True, slots=True)
class CheckCase:
    """A product, a collective, or both at once. ``nbytes`` as nccl-tests counts it.

    ``order``: which of two is issued first. ``held_out`` cases are never used for calibration.
    """

    product: Dimensions | None = None
    dtype: str = "bf16"
    collective: str = ""
    nbytes: int = 0
    order: str = ""
    held_out: bool = False

    @property
    def name(self) -> str:
        """The name in tables and files."""
        parts = []
        if self.product is not None:
            parts.append(f"gemm {'x'.join(map(str, self.product))} {self.dtype}")
        if self.collective:
            parts.append(f"{self.collective} {self.nbytes}")
        return " + ".join(parts) + (f" ({self.order} first)" if self.order else "")

    @property
    def group(self) -> str:
        """What it is an example of."""
        if self.order:
            return "overlap"
        return "collective" if self.collective else "product"


def cases_of(num_ranks: int, scale: float) -> list[CheckCase]:
    """Return the cases of a check; ``scale`` 1 is for GPUs, less for a stand-in."""
    unit = max(64, round(1024 * scale))
    edges = [unit, 2 * unit, 4 * unit, 8 * unit] if scale >= 1 else [unit, 2 * unit]
    dtypes = ("bf16", "fp16", "tf32") if scale >= 1 else ("fp32",)
    found = [CheckCase((edge, edge, edge), dtype) for edge in edges for dtype in dtypes]
    odd = [(3 * unit, 5 * unit // 2, unit), (unit, 6 * unit, 2 * unit)]
    found += [CheckCase(shape, dtypes[0], held_out=True) for shape in odd]
    if num_ranks == 1:
        return found
    sizes = [MiB, 4 * MiB, 16 * MiB, 64 * MiB, 256 * MiB] if scale >= 1 else [MiB // 4, MiB]
    between = [6 * MiB, 96 * MiB] if scale >= 1 else [MiB // 2]
    for kind in COLLECTIVES:
        found += [CheckCase(collective=kind, nbytes=size) for size in sizes]
        found += [CheckCase(collective=kind, nbytes=size, held_out=True) for size in between]
    edge, size = edges[-1], sizes[-2] if scale >= 1 else sizes[-1]
    for kind in ("all_gather", "reduce_scatter"):
        for order in ("communication", "compute"):
            found.append(CheckCase((edge, edge, edge), dtypes[0], kind, size, order, held_out=True))
    return found


def predicted(case: CheckCase, platform: Platform, num_ranks: int) -> float | None:
    """Return the predicted seconds of a case; None where nothing can be said."""
    prices = Prices(platform, default_library(platform))
    what = Collective(case.collective, case.nbytes) if case.collective else None
    try:
        if case.product is not None and what is None:
            return prices.kernel(Cost("gemm", case.product, case.dtype))
        if what is not None and case.product is None:
            return prices.collective(what, tuple(range(num_ranks)))
        compute = Op("gemm", cost=Cost("gemm", case.product or (), case.dtype))
        exchange = Op(case.collective, "collective", "communication", collective=what)
        ops = (exchange, compute) if case.order == "communication" else (compute, exchange)
        graph = StepGraph("overlap", num_ranks, (RankStep(tuple(range(num_ranks)), ops),))
        return predict_seconds(graph, platform, host=NO_HOST)
    except WeftError:
        return None


def predictions(
    cases: Sequence[CheckCase], platform: Platform, num_ranks: int
) -> dict[str, float | None]:
    """Return the prediction of every case by name."""
    return {case.name: predicted(case, platform, num_ranks) for case in cases}


def digest(found: Mapping[str, Any]) -> str:
    """Return the SHA-256 of predictions in their one written form.

    >>> digest({"b": 1.0, "a": None}) == digest({"a": None, "b": 1.0})
    True
    """
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def error_table(
    cases: Sequence[CheckCase],
    before: Mapping[str, float | None],
    after: Mapping[str, float | None],
    measured: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Return a row per measured case: predictions of the catalogue and of the calibrated file."""
    rows = []
    for case in cases:
        if case.name not in measured:
            continue
        took = measured[case.name]
        row: dict[str, Any] = {"case": case.name, "group": case.group, "measured": took}
        row |= {"held_out": case.held_out, "predicted": before.get(case.name)}
        row |= {"calibrated": after.get(case.name)}
        for key in ("predicted", "calibrated"):
            value = row[key]
            row[f"{key}_error"] = None if value is None else value / took - 1
        rows.append(row)
    return rows
