"""A model that answers requests while cached blocks come from the host: arXiv 2511.06605, MI300X.

Published is an envelope: up to 1.5 times lower latency and up to 1.9 times the throughput of vLLM,
which hands out a call of the runtime for each block. Which models, prompts and hit rates it was
reached with is not known here, so it is compared with cases that were written down before any
was priced. Nothing was fitted to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from validation.inference_plots import plots
from validation.latte_tables import SOURCE
from validation.target import Target
from weft.hardware import platform
from weft.models.zoo import MODELS
from weft.serving import BatchLimits, Load, Question
from weft.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NAME", "QUESTION", "plots", "targets"]

NAME = "inference"
QUESTION = "What do fetches by engines gain a server that keeps prompts in the host's memory?"
PUBLISHED = {"latency": 1.5, "throughput": 1.9}  # up to

# Models with the ranks that share one: blocks of 16 tokens are 32, 32, 8, 4, 4 and 160 KiB.
MODELS_SERVED = (
    *(("llama-8b", 1), ("llama-70b", 1), ("llama-70b", 4), ("llama-70b", 8)),
    *(("llama-405b", 8), ("llama-13b", 1)),
)
PROMPTS, HITS = (1024, 4096, 8192), (0.5, 0.9, 1.0)
WAYS = ("per-copy", "batched", "b2b")
REQUESTS, ANSWER = 32, 64

_target = partial(Target, NAME, unit="x", source=SOURCE)


@dataclass(frozen=True, slots=True)
class _Found:
    """What one way gains in one case over a call for each block."""

    served: str
    way: str
    prompt: int
    hit: float
    gains: dict[str, float]


def targets() -> Iterator[Target]:
    """Compute the figures."""
    found = [gain for case in _cases() for gain in _gains(case)]
    yield from _envelope([each for each in found if each.way == "b2b"])
    for served, way in dict.fromkeys((each.served, each.way) for each in found):
        cases = [each for each in found if (each.served, each.way) == (served, way)]
        yield from (_best(cases, what) for what in PUBLISHED)
    yield from _overheads()


def _cases() -> Iterator[Question]:
    machine = platform("mi300x-8")
    for (name, ranks), prompt, hit in product(MODELS_SERVED, PROMPTS, HITS):
        model = replace(MODELS[name], tp=ranks)
        yield Question(name, model, machine, Load(REQUESTS, prompt, ANSWER, hit, math.inf))


def _gains(case: Question) -> Iterator[_Found]:
    rows = case.rows(WAYS)
    served = f"{case.name} tp {case.model.tp}, blocks of {format_size(rows[0]['block'])}"
    for row in rows[1:]:
        yield _Found(served, row["fetch"], case.load.prompt, case.load.hit, _of(row))


def _of(row: dict[str, Any]) -> dict[str, float]:
    return {"latency": row["ttft_alone_gain"], "throughput": row["throughput_gain"]}


def _envelope(engines: list[_Found]) -> Iterator[Target]:
    """Yield whether both figures are reached, and how far cases exceed them, which has no limit."""
    best = {what: max(each.gains[what] for each in engines) for what in PUBLISHED}
    yield _target(
        "published gains (1.5x in latency, 1.9x in throughput) that b2b reaches",
        2.0,
        unit="",
        weft=float(sum(best[what] >= published for what, published in PUBLISHED.items())),
        allowed=0.0,
        error_in="points",
    )
    for what, published in PUBLISHED.items():
        gains = [each.gains[what] for each in engines]
        many = sum(gain >= published for gain in gains)
        yield _target(
            f"b2b, largest gain in {what}",
            published,
            weft=best[what],
            note=f"{many} of {len(gains)} cases reach it; the smallest is {min(gains):.2f}x",
        )


def _best(cases: list[_Found], what: str) -> Target:
    """Return the largest gain of a model, and where the published gain is not reached."""
    one, published = cases[0], PUBLISHED[what]
    missed = [each for each in cases if each.gains[what] < published]
    where = ", ".join(f"{each.prompt}/{each.hit:g} {each.gains[what]:.2f}x" for each in missed)
    return _target(
        f"{one.served}, {one.way}: {what}",
        published,
        weft=max(each.gains[what] for each in cases),
        note=f"not with prompt/hit {where}" if missed else "reached in every case",
    )


def _overheads() -> Iterator[Target]:
    """Yield how host overhead per pass, which weft does not model, reduces the gains."""
    model, load = replace(MODELS["llama-70b"], tp=8), Load(REQUESTS, 4096, ANSWER, 0.9, math.inf)
    machine = platform("mi300x-8")
    for overhead, ahead in product((0.0, 2e-3, 1e-2), (False, True)):
        limits = BatchLimits(overhead=overhead, ahead=ahead)
        row = Question("llama-70b", model, machine, load, limits).rows(WAYS)[-1]
        said = f"{1e3 * overhead:g} ms of the host for every pass{', ahead' if ahead else ''}"
        for what, gain in _of(row).items():
            yield _target(f"llama-70b tp 8, b2b, {said}: {what}", PUBLISHED[what], weft=gain)
