"""How much faster data-parallel training is with weft than with Gloo."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.launch import started
from benchmarks.limits import Faster, judged
from benchmarks.rows import Options, Row
from weft.errors import UsageError
from weft.local_runs.contest import ContestEntry, compete, seconds_of
from weft.local_runs.rank_team import Team

QUESTION = "How much faster is DDP with weft than with Gloo, where Gloo takes half of the step?"
RANKS = (2, 4)
GRADIENTS = (32 << 10, 1 << 20, 2 << 20, 8 << 20, 16 << 20)
_BATCHES = (1, *(each for power in range(1, 13) for each in (1 << power, 3 << power - 1)))
_SAME = 1e-6  # of a loss: Gloo and weft add more than two ranks up in different orders


def run(options: Options) -> Iterator[Row]:
    """Train the same model by both, in turn; sizes are those of the gradients."""
    if set(options.against) - {"gloo"}:
        raise UsageError("DDP is compared with Gloo alone.", "Leave --against out.")
    for ranks in options.ranks or RANKS:
        with started(("dist", "gloo"), ranks, pin=options.pin) as teams:
            for gradients in options.sizes or GRADIENTS:
                yield _trained(teams, ranks, gradients, options)


def count_rows(options: Options) -> int:
    """Count what ``run`` will give."""
    return len(options.ranks or RANKS) * len(options.sizes or GRADIENTS)


def _trained(teams: Mapping[str, Team], ranks: int, gradients: int, options: Options) -> Row:
    batch = _batch_of(teams["gloo"], gradients)
    case = _case(gradients, batch)
    entries = {name: ContestEntry(team, case) for name, team in teams.items()}
    entries["alone"] = ContestEntry(teams["gloo"], _case(gradients, batch, alone=True))
    outcome = compete(entries, options.rounds)
    peer = outcome.compare("gloo", "dist")
    share = 1 - 1 / outcome.compare("gloo", "alone").ratio
    apart = difference(outcome.answers["dist"], outcome.answers["gloo"])
    what = {
        "model": "mlp",
        "ranks": ranks,
        "gradient_bytes": gradients,
        "batch": batch,
        "path": "dist",
        "pinned": options.pin,
    }
    row = Row("ddp", what, outcome.times["dist"], {"gloo": peer})
    row.more.update(gloo_share=share, loss_difference=apart, foreign=outcome.foreign)
    row.more.update(judged(row, [Faster(_wanted(ranks, gradients), ("gloo",))]))
    if not apart <= _SAME:
        row.more["met"] = False
    return row


def _wanted(ranks: int, gradients: int) -> float:
    """Return how many times as fast a step must be; short messages leave more to gain."""
    return 1.25 if ranks == 2 and gradients > 64 << 10 else 1.5


def _case(gradients: int, batch: int, *, alone: bool = False) -> dict[str, Any]:
    return {"gradients": gradients, "batch": batch, "alone": alone}


def _batch_of(gloo: Team, gradients: int) -> int:
    """Find the batch with which half of Gloo's step is communication, as near as there is one.

    The larger the batch, the smaller that share, so halving the list of batches finds two
    neighbours, with more than half and with less.
    """
    shares: dict[int, float] = {}
    low, high = 0, len(_BATCHES) - 1
    while low < high:
        middle = (low + high) // 2
        shares[_BATCHES[middle]] = share = _share(gloo, gradients, _BATCHES[middle])
        low, high = (middle + 1, high) if share > 0.5 else (low, middle)
    return min(shares, key=lambda batch: abs(shares[batch] - 0.5))


def _share(gloo: Team, gradients: int, batch: int) -> float:
    seconds = {}
    for alone in (False, True):
        name = "alone" if alone else "gloo"
        gloo.ask("open", name, case=_case(gradients, batch, alone=alone))
        seconds[name] = seconds_of(name, gloo)
        gloo.ask("close", name)
    return 1 - seconds["alone"] / seconds["gloo"]


def difference(mine: list[list[float]], theirs: list[list[float]]) -> float:
    """Return the largest relative difference of two losses of the same step and rank."""
    pairs = [
        (m, t) for ms, ts in zip(mine, theirs, strict=True) for m, t in zip(ms, ts, strict=True)
    ]
    if not all(math.isfinite(value) for pair in pairs for value in pair):
        return math.inf
    return max(abs(m - t) / max(abs(t), 1e-30) for m, t in pairs)
