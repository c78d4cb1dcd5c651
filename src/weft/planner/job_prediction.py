"""The prediction of a generated job: its step as it is, or folded where it has too many ops."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.models.folding import MANY_OPS, Folding, ops_of
from weft.models.stacks import stack_named
from weft.models.transformer import Transformer
from weft.planner.predict import check_memory, predict, step_range
from weft.planner.prices import Prices, default_library

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.models.job import Job
    from weft.planner.predict import Prediction
    from weft.workload import HostModel


def predict_job(
    job: Job,
    platform: Platform,
    *,
    host: HostModel | None = None,
    anyway: bool = False,
    prices: Prices | None = None,
) -> Prediction:
    """Predict one step of a job; one that does not fit into memory is refused, unless ``anyway``.

    The range of a folded step is as wide as those of its passes together.
    """
    prices = prices or Prices(platform, default_library(platform))
    model = job.model
    on_cores = platform.require_device().is_core
    few = not isinstance(model, Transformer) or ops_of(model, job.num_ranks) <= MANY_OPS
    if few or on_cores or not isinstance(model, Transformer):
        return predict(job.workload(), platform, host=host, anyway=anyway, prices=prices)
    stack = stack_named(job.stack) if job.stack else None
    folding = Folding(job.name, model, job.num_ranks, platform, prices, host, stack)
    workload = folding.workload()
    if not anyway:
        check_memory(workload, platform)
    found = predict(workload, platform, host=host, anyway=True, prices=prices)
    ranges = [(step_range(engine, prices), seconds) for engine, seconds in folding.engines]
    whole = sum(seconds for _, seconds in ranges)
    low, high = (sum(each[side] for each, _ in ranges) / whole for side in (0, 1))
    seconds = found.seconds
    return replace(found, low=min(1.0, low) * seconds, high=max(1.0, high) * seconds)
