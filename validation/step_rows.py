"""Measured steps next to their predictions: errors and ranges of a set, in one form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from validation.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weft.planner.predict import Prediction


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step: the part of its data set, what was measured, and the prediction with its range."""

    part: str
    name: str
    measured: float
    predicted: float
    low: float
    high: float

    @staticmethod
    def of(part: str, name: str, measured: float, found: Prediction) -> StepRow:
        """Return the row of a prediction."""
        return StepRow(part, name, measured, found.seconds, found.low, found.high)

    @property
    def error(self) -> float:
        """How much longer the prediction is, as a share."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured value lies in the predicted range."""
        return self.low <= self.measured <= self.high


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
    yield Target(
        group,
        f"{title}, {kind}: measured steps inside the predicted range",
        None,
        "%",
        source,
        weft=100 * float(np.mean([row.inside for row in rows])),
        fitted=fitted,
        note=f"median width {width:.2f}",
    )
