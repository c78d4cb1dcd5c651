"""Layouts that the search finds, next to those that submitters to MLPerf chose by measuring."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from validation.mlperf_v5 import SOURCE, model_405b, submitted_machine
from validation.nccl_tables import data_folder
from validation.splits import STEPS_405B
from validation.target import Target
from weft.models.job import Job
from weft.planner.layout_search import LayoutSearch

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "layouts"
QUESTION = "How much slower are submitters' layouts than those that --search layout finds?"
_SCALES = ("H100 512", "GB200 256")  # a search takes a minute; layouts are alike on more GPUs
_GIVEN = frozenset(("batch", "seq", "math", "sp", "tp_overlap"))


def targets() -> Iterator[Target]:
    """Search the layouts of the 405B submissions, with what the benchmark fixes given."""
    folder = data_folder()
    if folder is None:
        return
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
