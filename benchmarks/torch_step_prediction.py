"""Steps of small models predicted from the calibration of this machine and their configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.torch_trained_models import training
from benchmarks.training_runs import BACKENDS
from weft.calibration import machine_calibration
from weft.calibration.torch_calibration import current_here, measured_here
from weft.calibration.torch_op_calls import OpCall
from weft.calibration.torch_op_times import OpTime
from weft.calibration.torch_timed_steps import CapturedStep, captured_step
from weft.hardware import Platform
from weft.local_runs.synthetic_models import RANKS, SyntheticDlrm, SyntheticModel
from weft.planner.predict import Prediction, predict
from weft.planner.prices import Prices


@dataclass(frozen=True)
class StepPrediction:
    """Seconds of a step by backend: with its ops timed singly, by formulas alone, naively."""

    predicted: dict[str, float]
    ranges: dict[str, tuple[float, float]]
    formula: dict[str, float]
    naive: float
    parts: dict[str, dict[str, float]]


def current_platform() -> Platform:
    """Return the calibration of this machine; a missing, foreign or stale one is made anew."""
    found = current_here()
    if found is None:
        found = measured_here()
        machine_calibration.require_quiet(found)
        machine_calibration.save(found)
    return found


def captured(model: SyntheticModel) -> CapturedStep:
    """Capture one step of training of a model on both ranks."""
    zipfs = (
        {rows: zipf for rows, _, zipf in model.tables} if isinstance(model, SyntheticDlrm) else {}
    )
    return captured_step(
        partial(training, model),
        RANKS,
        name=model.model,
        zipfs=zipfs,
        every_rank=isinstance(model, SyntheticDlrm),
    )


def predict_step(
    step: CapturedStep, here: Platform, times: Mapping[OpCall, OpTime]
) -> StepPrediction:
    """Predict one step, without ever running it."""
    exact = {name: _predicted(step, here, name, times) for name in BACKENDS}
    ranges = {
        name: (
            _predicted(step, here, name, times, -1.0).low,
            _predicted(step, here, name, times, 1.0).high,
        )
        for name in BACKENDS
    }
    formula = {name: _predicted(step, here, name, {}) for name in BACKENDS}
    return StepPrediction(
        {name: each.seconds for name, each in exact.items()},
        ranges,
        {name: each.seconds for name, each in formula.items()},
        warm_sum(step, times),
        {name: each.breakdown for name, each in exact.items()},
    )


def warm_sum(step: CapturedStep, times: Mapping[OpCall, OpTime]) -> float:
    """Add up the ops of the busiest rank as if they found all data in the caches."""
    return max(
        sum(times[called.call].warm for called in mine.values() if called.call in times)
        for mine in step.calls.values()
    )


def _predicted(
    step: CapturedStep,
    here: Platform,
    library: str,
    times: Mapping[OpCall, OpTime],
    side: float = 0.0,
) -> Prediction:
    cut = here.resized(RANKS)
    return predict(
        step.timed(times, cut, library, side=side),
        cut,
        anyway=True,
        prices=Prices(cut, library=library),
    )
