"""The prediction of a generated job: its step as it is, or folded where it has too many ops."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.models.folding import MANY_OPS, Folding, ops_of
from weft.models.transformer import Transformer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import fullest_memory
from weft.planner.predict import check_memory, predict, step_range
from weft.planner.prices import Prices, default_library
from weft.planner.spreading import shortened_job

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.models.job import Job
    from weft.planner.plan import Plan
    from weft.planner.predict import Prediction
    from weft.step import HostModel

_BRIEF_OPS = 10_000  # of a step that is folded where many are compared: below, folding is no faster


def predict_job(
    job: Job,
    platform: Platform,
    *,
    host: HostModel | None = None,
    anyway: bool = False,
    prices: Prices | None = None,
    brief: bool = False,
    ranged: bool = True,
) -> Prediction:
    """Predict one step of a job; one that does not fit into memory is refused, unless ``anyway``.

    A step of very many ops is folded, ``brief`` ones sooner and with fewer micro batches left
    (mostly within 1 %, see docs/models.md); its range is as wide as those of its passes
    together.
    """
    prices = prices or Prices(platform, default_library(platform))
    model, software = job.model, job.software
    if isinstance(model, Transformer) and not anyway:
        # before any op is written: a step that is far too large has too many of them
        check_memory(job.name, fullest_memory(model, Layout(model, job.num_ranks)), platform)
    on_cores = platform.require_device().is_core
    most = _BRIEF_OPS if brief else MANY_OPS
    few = not isinstance(model, Transformer) or ops_of(model, job.num_ranks) <= most
    if few or on_cores or not isinstance(model, Transformer):
        return predict(
            job.graph(),
            platform,
            host=host,
            anyway=anyway,
            prices=prices,
            ranged=ranged,
            stack=software,
        )
    folding = Folding(job.name, model, job.num_ranks, platform, prices, host, software, brief)
    graph = folding.graph(model.pp if brief else 0)
    whole = not folding.engines  # few micro batches, of which none is like the others
    found = predict(
        graph,
        platform,
        host=host,
        anyway=True,
        prices=prices,
        ranged=ranged and whole,
        stack=software,
    )
    if whole or not ranged:
        return found
    ranges = [(step_range(each, prices, software), each.run().seconds) for each in folding.engines]
    total = sum(seconds for _, seconds in ranges)
    low, high = (sum(each[side] for each, _ in ranges) / total for side in (0, 1))
    of_experts = sum(each.of_experts * seconds for each, seconds in ranges) / total
    seconds = found.seconds
    ends = min(1.0, low) * seconds, max(1.0, high) * seconds
    return replace(found, low=ends[0], high=ends[1], of_experts=of_experts)


def extended_plan(
    plan: Plan, job: Job, platform: Platform, *, host: HostModel | None = None
) -> Plan:
    """Return the plan of a step that was planned with some of its micro batches, for all of them.

    Micro batches repeat, so what is chosen for one holds for all; the step is predicted whole, and
    the plan saves the same share of it.
    """
    short = shortened_job(job)
    if short is job or not plan.baseline:
        return plan
    assert isinstance(job.model, Transformer)
    assert isinstance(short.model, Transformer)
    whole_step = predict_job(job, platform, host=host, anyway=True, ranged=False)
    scale = whole_step.seconds / plan.baseline
    kept, whole = (Layout(each, job.num_ranks).num_micro for each in (short.model, job.model))
    note = f"planned with {kept} of {whole} micro batches, which repeat; seconds are of them all"
    return replace(
        plan,
        baseline=plan.baseline * scale,
        planned=plan.planned * scale,
        low=plan.low * scale,
        high=plan.high * scale,
        notes=(note, *plan.notes),
    )
