"""Measured steps next to their predictions: errors and ranges of a set, in one form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, wraps
from math import sqrt
from typing import TYPE_CHECKING, Literal, ParamSpec

import numpy as np

from validation.target import Target
from weft.planner.job_prediction import predict_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from weft.hardware import Platform
    from weft.models.job import Job
    from weft.planner.predict import Prediction


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step: the part of its data set, what was measured, and the prediction with its range.

    ``stack`` is the software that ran it, ``experts`` how much of the term of experts it has.
    """

    part: str
    name: str
    measured: float
    predicted: float
    low: float
    high: float
    stack: str = ""
    experts: float = 0.0

    @staticmethod
    def of(part: str, name: str, measured: float, found: Prediction, stack: str) -> StepRow:
        """Return the row of a prediction."""
        ends = found.seconds, found.low, found.high
        return StepRow(part, name, measured, *ends, stack, found.of_experts)

    @property
    def error(self) -> float:
        """How much longer the prediction is, as a share."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured value lies in the predicted range."""
        return self.low <= self.measured <= self.high


P = ParamSpec("P")


@cache
def predicted_job(job: Job, machine: Platform) -> Prediction:
    """Predict a job, equal ones of several submitters, releases or containers once."""
    return predict_job(job, machine, anyway=True)


def kept(rows: Callable[P, Iterable[StepRow]]) -> Callable[P, tuple[StepRow, ...]]:
    """Keep the rows of a data set: predicting them takes long, and several groups show them."""

    @cache
    @wraps(rows)
    def found(*args: P.args, **kwargs: P.kwargs) -> tuple[StepRow, ...]:
        return tuple(rows(*args, **kwargs))

    return found  # type: ignore[return-value]


HELD, FEW = 0.8, 20  # share of values that ranges are meant to hold; rows that tell little of it


def range_target(
    group: str,
    title: str,
    source: str,
    inside: Sequence[bool],
    width: float,
    *,
    fitted: bool,
    note: str = "",
) -> Target:
    """Return how many values lie in their range; few rows have no limit, and say how few."""
    uncertain = 100 * sqrt(HELD * (1 - HELD) / len(inside))
    few = f"{len(inside)} rows: +-{uncertain:.0f} points by chance"
    notes = (note, f"median width {width:.2f}", few if len(inside) < FEW else "")
    return Target(
        group,
        f"{title}: measured values inside the range",
        82.5,
        "%",
        source,
        weft=100 * float(np.mean(inside)),
        allowed=7.5 if len(inside) >= FEW else -1.0,
        error_in="points",
        fitted=fitted,
        note="; ".join(filter(None, notes)),
    )


def set_targets(
    group: str,
    title: str,
    source: str,
    rows: Sequence[StepRow],
    allowed: float,
    *,
    fitted: bool,
    by: Literal["mean", "median"] = "mean",
    held_out: str = "unseen",
) -> Iterator[Target]:
    """Return the error of a part of a data set, and how many of its values the ranges hold."""
    errors = np.array([row.error for row in rows])
    sizes = np.abs(errors)
    parts = ", ".join(dict.fromkeys(row.part for row in rows))
    kind = "fitted" if fitted else held_out
    yield Target(
        group,
        f"{title}, {kind}: {by} error of the step",
        None,
        "%",
        source,
        weft=100 * float(sizes.mean() if by == "mean" else np.median(sizes)),
        allowed=allowed,
        error_in="value",
        fitted=fitted,
        note=f"{len(rows)} steps ({parts}); bias {100 * errors.mean():+.1f} %, worst tenth beyond "
        f"{100 * float(np.quantile(sizes, 0.9)):.0f} %",
    )
    width = float(np.median([row.high / row.low for row in rows]))
    inside = [row.inside for row in rows]
    yield range_target(group, f"{title}, {kind}", source, inside, width, fitted=fitted)
