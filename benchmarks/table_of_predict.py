"""The table of ``weft bench predict``: predicted and measured times, and the errors."""

from collections.abc import Sequence
from typing import Any

from benchmarks.rows import Row
from weft.cost.fit_errors import geomean_error
from weft.report.text import Column, print_table
from weft.units import format_time

_KINDS = (
    ("ops timed", "error"),
    ("formulas only", "formula_error"),
    ("naive sum", "naive_error"),
)


def print_predict_rows(rows: Sequence[Row]) -> None:
    """Print every case, then the errors of DLRMs and of transformers."""
    columns = [
        Column("seed", "seed"),
        Column("model", "model", right=False, style="bold"),
        Column("backend", "backend", right=False),
        Column("predicted", "predicted", format_time),
        Column("measured", "measured", format_time),
        Column("error", "error", "{:+.1%}".format),
        Column("floor", "floor", "{:.1%}".format),
        Column("moved", "memory moved", "{:.0%}".format),
        Column("formula_error", "formulas only", "{:+.1%}".format),
        Column("naive_error", "naive sum", "{:+.1%}".format),
        Column("discarded", "discarded", "{:.0%}".format),
    ]
    print_table(columns, [{**row.case, **row.more} for row in rows])
    print()
    columns = [
        Column("what", "steps of", right=False, style="bold"),
        Column("how", "predicted by", right=False),
        Column("count", "steps"),
        *(Column(key, key, "{:.1%}".format) for key in ("geomean", "mean", "worst", "floor")),
    ]
    print_table(columns, summaries(rows))
    inside = [row.more["low"] <= row.more["measured"] <= row.more["high"] for row in rows]
    print(f"\n{sum(inside)} of {len(rows)} measured steps lie in the predicted range")
    print(
        "ops were timed one by one at their shapes as part of the calibration, never a step; "
        '"formulas only" has formulas instead; an error is the median of those of the repetitions, '
        "each with ops timed around it; the range covers nine of ten memory copies"
    )


def summaries(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the errors of each kind of model by each way of predicting."""
    groups = {
        "DLRMs": [row for row in rows if row.case["model"] == "dlrm"],
        "transformers": [row for row in rows if row.case["model"] != "dlrm"],
    }
    return [
        {"what": what, "how": how, **_summary(group, error)}
        for what, group in groups.items()
        if group
        for how, error in _KINDS
    ]


def _summary(rows: Sequence[Row], key: str) -> dict[str, Any]:
    errors = [abs(row.more[key]) for row in rows]
    floors = [row.more["floor"] for row in rows]
    return {
        "count": len(rows),
        "geomean": geomean_error(errors),
        "mean": sum(errors) / len(errors),
        "worst": max(errors),
        "floor": sum(floors) / len(floors),
    }
