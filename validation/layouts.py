"""Layouts in the order of their steps: predicted next to measured, and next to those of submitters.

vTrain measured many layouts of the same models on the same GPUs; submitters to MLPerf chose theirs
by measuring.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from validation.mlperf_v5 import SOURCE, model_405b, submitted_machine
from validation.nccl_tables import data_folder
from validation.splits import STEPS_405B, STEPS_MEGATRON
from validation.stacks import megatron_steps
from validation.target import Target
from weft.models.job import Job
from weft.planner.job_prediction import predict_job
from weft.planner.layout_search import LayoutSearch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

NAME = "layouts"
QUESTION = "Are layouts in the order of measured ones, and are submitters' among the best found?"
_SCALES = ("H100 512", "GB200 256")  # a search takes a minute; layouts are alike on more GPUs
_GIVEN = frozenset(("batch", "seq", "math", "sp", "tp_overlap"))
_LEAST = 4  # layouts of a group that have an order
_NEAR = 1.05  # of the fastest layout's time: as good


class TimedLayout(NamedTuple):
    """Seconds of a sequence with one layout; ``group`` is what it is compared with."""

    group: tuple[object, ...]
    measured: float
    predicted: float


class Order(NamedTuple):
    """How well predictions order layouts: means over groups."""

    groups: int
    correlation: float  # of ranks
    chosen: float  # share of groups whose predicted best is as good as the fastest


def order_of(layouts: Iterable[TimedLayout]) -> Order:
    """Compare the order of layouts by predicted and by measured time, group by group."""
    groups: dict[tuple[object, ...], list[TimedLayout]] = defaultdict(list)
    for each in layouts:
        groups[each.group].append(each)
    large = [group for group in groups.values() if len(group) >= _LEAST]
    correlations, chosen = [], []
    for group in large:
        measured = np.array([each.measured for each in group])
        predicted = np.array([each.predicted for each in group])
        correlations.append(np.corrcoef(_ranks(measured), _ranks(predicted))[0, 1])
        chosen.append(measured[predicted.argmin()] <= _NEAR * measured.min())
    return Order(len(large), float(np.mean(correlations)), float(np.mean(chosen)))


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values))


def targets() -> Iterator[Target]:
    """Order vTrain's layouts, then search those of the 405B submissions."""
    folder = data_folder()
    if folder is None:
        return
    yield from _orders(folder)
    yield from _searches(folder)


def _orders(folder: Path) -> Iterator[Target]:
    """Predict all steps of vTrain, without their ranges."""
    steps = list(megatron_steps(folder, every=1))
    found = []
    for step in steps:
        job = Job(step.name, step.model, step.machine.num_ranks, (), "megatron-deepspeed")
        found.append(predict_job(job, step.machine, anyway=True, ranged=False).seconds)
    for fitted in (True, False):
        kind = "fitted" if fitted else STEPS_MEGATRON.held_out_label
        mine = [
            (step, seconds)
            for step, seconds in zip(steps, found, strict=True)
            if (step.part in STEPS_MEGATRON.fitted) == fitted
        ]
        for same in ("GPUs", "GPUs and batch"):
            layouts = [
                TimedLayout(
                    (step.part, step.model.layers, step.machine.num_ranks)
                    + (step.model.batch,) * (same != "GPUs"),
                    step.seconds / step.model.batch,
                    seconds / step.model.batch,
                )
                for step, seconds in mine
            ]
            yield from _order_targets(
                f"vTrain's layouts, same {same}, {kind}", layouts, fitted=fitted
            )


def _order_targets(title: str, layouts: Sequence[TimedLayout], *, fitted: bool) -> Iterator[Target]:
    order = order_of(layouts)
    source = f"WEFT_DATA/{STEPS_MEGATRON.folder}"
    note = f"{len(layouts)} steps, {order.groups} groups of {_LEAST} layouts or more"
    yield Target(
        *(NAME, f"{title}: rank correlation", 1.0, "", source, order.correlation, 0.03, "points"),
        fitted=fitted,
        note=note,
    )
    yield Target(
        *(NAME, f"{title}: predicted best within 5 % of the fastest", 100.0, "%", source),
        *(100 * order.chosen, 10.0, "points"),
        fitted=fitted,
        note=note,
    )


def _searches(folder: Path) -> Iterator[Target]:
    """Search layouts with what the benchmark fixes given."""
    seen = set()
    with (folder / STEPS_405B.folder).open() as file:
        for row in csv.DictReader(file):
            name = f"{row['accelerator']} {row['num_gpus']}"
            if row["benchmark"] != "llama31_405b" or name in seen or name not in _SCALES:
                continue
            seen.add(name)
            ranks = int(row["num_gpus"])
            job = Job("405B", model_405b(row), ranks, (), "mlperf")
            search = LayoutSearch(job, submitted_machine(row["accelerator"], ranks), _GIVEN)
            best, own = search.best(1)[0], search.own()
            if own is None:
                continue
            shown = ", ".join(f"{key}={value}" for key, value in best.settings.items())
            yield Target(
                NAME,
                f"405B on {name}: submitter's layout over the one found",
                None,
                "%",
                SOURCE,
                weft=100 * (own.seconds / best.seconds - 1),
                allowed=8.0,
                error_in="value",
                note=f"{own.seconds:.3f} s, predicted, against {best.seconds:.3f} s: {shown}",
            )
