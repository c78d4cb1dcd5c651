"""Whether ranges hold four of five values that nothing was fitted to: kernels and collectives.

Ranges of measured steps are checked where their data sets are; their plots are here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from validation.fit_ranges import RangeCheck, fit_kernels
from validation.nccl_tables import data_folder
from validation.range_tables import collective_tables, kernel_tables
from validation.step_sets import STEP_SETS
from validation.target import Target
from validation.unseen_plots import UnseenTable, calibration_of_ranges, parity
from weft.cost.ranges import collective_term, range_term

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.report.svg import Chart

NAME = "ranges"
QUESTION = "Do ranges hold four of five times of kernels, collectives and steps?"
SOURCE = "tables of the groups kernels, nccl and predict"
_SECONDS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
_DRAWN = ("decode", "moe", "collectives")  # the others are in the group predict
_FEW, _MEANT, _ALLOWED = 20, 82.5, 7.5


def targets() -> Iterator[Target]:
    """Check every table without its own part in the terms, then families as a whole."""
    folder = data_folder()
    if folder is None:
        return
    families: dict[str, list[tuple[RangeCheck, int]]] = defaultdict(list)
    for check in fit_kernels(folder)[1]:
        note = f"{check.rows} rows, median width {check.width:.2f}"
        if check.rows < _FEW:
            note += f"; +-{100 * check.uncertainty:.0f} points by chance"
        if not check.fitted:
            families[check.title.split()[0]].append((check, min(check.rows, _FEW)))
        yield Target(
            NAME,
            f"{check.title}: inside the range",
            None,
            "%",
            SOURCE,
            100 * check.apart,
            fitted=check.fitted,
            note=note,
        )
    for name, found in families.items():
        weights = [weight for _, weight in found]
        apart, inside = (
            100 * float(np.average([getattr(check, key) for check, _ in found], weights=weights))
            for key in ("apart", "inside")
        )
        yield Target(
            NAME,
            f"{name}: inside the range, mean of {len(found)} tables",
            _MEANT,
            "%",
            SOURCE,
            apart,
            _ALLOWED,
            "points",
            note=f"each table with terms of the others; with all terms {inside:.0f} %",
        )


def plots() -> dict[str, Chart]:
    """Draw parity and ranges of measured steps; nothing without the data."""
    folder = data_folder()
    if folder is None:
        return {}
    tables: dict[str, list[UnseenTable]] = {}
    for each in STEP_SETS:
        rows = [row for row in each.rows(folder) if row.part not in each.split.fitted]
        columns = zip(*((r.measured, r.predicted, r.low, r.high) for r in rows), strict=True)
        tables[each.title] = [UnseenTable(each.title, *(np.array(each) for each in columns))]
    every = [table for found in tables.values() for table in found]
    kernels: dict[str, list[UnseenTable]] = defaultdict(list)
    for table in (*kernel_tables(folder), *collective_tables(folder)):
        known = table
        if table.overhead is not None:
            widths = [collective_term(table.name, share).up for share in table.overhead]
            known = replace(table, weight=np.array(widths)).with_term(1.0)
        elif table.group:
            known = table.with_term(range_term(table.group, table.name).up)
        price = table.seconds * np.exp(-table.left)
        low, high = price * np.exp(-known.down), price * np.exp(known.up)
        family = table.title.split()[0] if table.group != "collectives" else "collectives"
        kernels[family].append(UnseenTable(table.title, table.seconds, price, low, high))
    return {
        **{f"parity-{name}": parity(name, kernels[name]) for name in _DRAWN},
        "kernels": calibration_of_ranges("kernels and collectives", kernels),
        "parity-steps": parity("steps", every, _SECONDS),
        "steps": calibration_of_ranges("steps", tables),
    }
