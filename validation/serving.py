"""Inference servers under a fixed number of requests in flight, measured on H100 and H200."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from validation.serving_rows import FITTED, ServedRow, predicted, served_rows
from validation.target import Target
from weft.serving import SERVERS

NAME = "serving"
QUESTION = "Do forward passes and schedulers explain first tokens and the time between tokens?"
SOURCE = "NVIDIA's measured servers, ai-dynamo/aiconfigurator @095f58a51c4c, Apache-2.0"
_CLOSE = 1.03  # times the best up to which numbers of ranks count as equally good
_target = partial(Target, NAME, source=SOURCE)


def targets() -> Iterator[Target]:
    """Compute the figures: the model that overheads are fitted to, then models held out."""
    folder = os.environ.get("WEFT_DATA")
    if not folder:
        return
    rows = served_rows(Path(folder))
    seen = [row for row in rows if row.model == FITTED]
    unseen = [row for row in rows if row.model != FITTED]
    for name in SERVERS:
        mine = [row for row in seen if row.server == name]
        yield from _errors(f"Qwen3-32B by {name}", mine, fitted=True)
    for model in dict.fromkeys(row.model for row in unseen):
        for name in SERVERS:
            mine = [row for row in unseen if (row.model, row.server) == (model, name)]
            yield from _errors(f"{model.split('/')[1]} by {name}", mine)
    yield from _errors("models held out", unseen, limits=(20.0, 10.0))
    dense = [row for row in unseen if "Llama" in row.model]
    yield from _errors("dense models held out", dense)
    yield _chosen("models held out", unseen, allowed=15.0)
    yield _chosen("Qwen3-32B", seen, fitted=True)


def _errors(
    what: str,
    rows: Iterable[ServedRow],
    *,
    limits: tuple[float, float] = (-1.0, -1.0),
    fitted: bool = False,
) -> Iterator[Target]:
    pairs = [(row, found) for row in rows if (found := predicted(row)) is not None]
    if not pairs:
        return
    for place, (name, allowed) in enumerate(
        zip(("first token", "between tokens"), limits, strict=True)
    ):
        ratios = [found[place] / (row.first, row.between)[place] for row, found in pairs]
        yield _target(
            f"{what}, {name}: median error",
            None,
            "%",
            weft=100 * median(abs(ratio - 1) for ratio in ratios),
            allowed=allowed,
            error_in="value",
            fitted=fitted,
            note=f"{len(pairs)} rows; predicted over measured {median(ratios):.2f} in the median",
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
