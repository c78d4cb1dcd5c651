"""Inference servers under a fixed number of requests in flight, measured on H100 and H200."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from validation.serving_rows import (
    ServedRow,
    disaggregated_rows,
    predicted,
    predicted_apart,
    served_rows,
)
from validation.splits import SERVING
from validation.target import Target
from weft.cli.outputs import track

NAME = "serving"
QUESTION = "Do forward passes and schedulers explain first tokens and the time between tokens?"
SOURCE = "NVIDIA's measured servers, ai-dynamo/aiconfigurator @095f58a51c4c, Apache-2.0"
_CLOSE = 1.03  # times the best up to which numbers of ranks count as equally good
_target = partial(Target, NAME, source=SOURCE)


PARTS = ("fitted", "held-out")  # of models, computed side by side


def targets() -> Iterator[Target]:
    """Compute the figures of models that servers are fitted to, then of models held out."""
    for part in PARTS:
        yield from targets_of(part)


def targets_of(part: str) -> Iterator[Target]:
    """Compute the figures of models that servers are fitted to, or of models held out."""
    folder = os.environ.get("WEFT_DATA")
    if not folder:
        return
    fitted, what = part == "fitted", part.replace("-", " ")
    models = SERVING.fitted if fitted else SERVING.held_out
    rows = served_rows(Path(folder), models)
    for row in track(rows, f"serving, models {what}"):
        predicted(row)  # kept for all tables below
    single: dict[str, list[ServedRow]] = defaultdict(list)
    for row in rows:
        single[f"{row.model.split('/')[1]} by {row.server}"].append(row)
        single[f"{what}: {row.kind} models"].append(row)
        single[f"{what}: {row.server}"].append(row)
    for name, mine in single.items():
        yield from _errors(name, mine, fitted=fitted)
    limits = (-1.0,) * 3 if fitted else (20.0, 10.0, -1.0)
    yield from _errors(f"models {what}", rows, limits=limits, fitted=fitted)
    yield _chosen(f"models {what}", rows, allowed=-1.0 if fitted else 15.0, fitted=fitted)
    yield from _apart(f"{what}, disaggregated", Path(folder), models, fitted=fitted)


def _apart(what: str, folder: Path, models: tuple[str, ...], *, fitted: bool) -> Iterator[Target]:
    """Score pools of prefill and decode workers; experts on ranks of their own were fitted here."""
    rows = track(disaggregated_rows(folder, models), f"serving, {what}")
    pairs = [(row.decode, found) for row in rows if (found := predicted_apart(row)) is not None]
    if pairs:
        yield from _medians(what, pairs, (-1.0,) * 3, fitted=fitted)


def _errors(
    what: str,
    rows: Iterable[ServedRow],
    *,
    limits: tuple[float, float, float] = (-1.0, -1.0, -1.0),
    fitted: bool = False,
) -> Iterator[Target]:
    pairs = [(row, found) for row in rows if (found := predicted(row)) is not None]
    if pairs:
        yield from _medians(what, pairs, limits, fitted=fitted)


def _medians(
    what: str,
    pairs: list[tuple[ServedRow, tuple[float, float]]],
    limits: tuple[float, ...],
    *,
    fitted: bool,
) -> Iterator[Target]:
    ratios = {
        "first token": [found[0] / row.first for row, found in pairs],
        "between tokens": [found[1] / row.between for row, found in pairs],
        "tokens/s": [row.rate(*found) / row.rate(row.first, row.between) for row, found in pairs],
    }
    for (name, each), allowed in zip(ratios.items(), limits, strict=True):
        yield _target(
            f"{what}, {name}: median error",
            None,
            "%",
            weft=100 * median(abs(ratio - 1) for ratio in each),
            allowed=allowed,
            error_in="value",
            fitted=fitted,
            note=f"{len(pairs)} rows; predicted over measured {median(each):.2f} in the median",
        )


def _chosen(
    what: str, rows: Iterable[ServedRow], *, allowed: float = -1.0, fitted: bool = False
) -> Target:
    """Return in how many groups the number of ranks with most tokens/s/GPU is another one."""
    groups: dict[tuple[object, ...], list[ServedRow]] = defaultdict(list)
    for row in rows:
        if predicted(row) is not None:
            groups[row.load].append(row)
    several = [each for each in groups.values() if len({row.tp for row in each}) > 1]
    wrong = 0
    for each in several:
        best = max(each, key=lambda row: row.rate(*(predicted(row) or (1.0, 1.0))))
        most = max(row.rate(row.first, row.between) for row in each)
        wrong += _CLOSE * best.rate(best.first, best.between) < most
    return _target(
        f"{what}: groups in which another tp has most tokens/s/GPU",
        None,
        "%",
        weft=100 * wrong / max(1, len(several)),
        allowed=allowed,
        error_in="value",
        fitted=fitted,
        note=f"{len(several)} groups; within 3 % of the best counts as right",
    )
