"""How far predicted steps of training are from measured ones, on this machine."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from statistics import median

from benchmarks.random_models import draw
from benchmarks.rows import Options, Row
from benchmarks.torch_op_timings import OpTimings
from benchmarks.torch_step_prediction import (
    StepPrediction,
    captured,
    current_platform,
    predict_step,
)
from benchmarks.training_runs import BACKENDS, Measured, gathered, repetition
from weft.calibration.steady_memory import forked_ranks
from weft.calibration.torch_host_overhead import PHASES, HostOverhead
from weft.calibration.torch_timed_steps import CapturedStep
from weft.hardware import Platform
from weft.hardware.measured import TorchHost
from weft.local_runs.synthetic_models import RANKS, SyntheticModel

QUESTION = "How far are predicted training steps from measured ones, on this machine?"
SEEDS = (1, 2, 3)
_TOGETHER = 2  # seeds whose models are measured in turn: processes are started for all of them
_REPEATS, _TURNS = 1, 2  # of ops and of the host, five times in each repetition
_ERRORS = {
    "error": "predicted",
    "formula_error": "formula",
    "naive_error": "naive",
}
_LOADED = ("torch", "torch.nn.parallel", "weft.calibration.torch_host_overhead")


def count_rows(options: Options) -> int:
    """Return the number of rows that ``run`` yields."""
    return 2 * len(BACKENDS) * len(options.seeds or SEEDS)


def run(options: Options) -> Iterator[Row]:
    """Predict and train one DLRM and one transformer a seed, by Gloo and by weft."""
    platform, seeds = current_platform(), options.seeds or SEEDS
    for first in range(0, len(seeds), _TOGETHER):
        some = seeds[first : first + _TOGETHER]
        yield from _Trial(some, platform).rows(options.rounds)


class _Trial:
    """The models of some seeds: their ops, timed alone, in turn with their steps."""

    def __init__(self, seeds: Sequence[int], platform: Platform) -> None:
        self._seeds, self._platform = seeds, platform
        self._models = {f"{each.model} {seed}": each for seed in seeds for each in draw(seed)}
        self._steps = {name: captured(model) for name, model in self._models.items()}
        self._pairs = [(self._models[name], step) for name, step in self._steps.items()]
        self._host = HostOverhead()

    def rows(self, rounds: int) -> Iterator[Row]:
        """Measure and yield a row for each model and backend."""
        predicted, found = [], []
        with forked_ranks(_LOADED):
            for number in range(rounds):
                shown = ", ".join(map(str, self._seeds))
                print(f"seeds {shown}: repetition {number + 1} of {rounds}", file=sys.stderr)
                around = _TimingsAroundSteps(self._pairs, self._host)
                found.append(repetition(self._models, around.measure))
                predicted.append(self._predicted(around))
        for (name, backend), measured in gathered(found).items():
            yield compared(
                self._models[name], backend, [each[name] for each in predicted], measured
            )

    def _predicted(self, around: "_TimingsAroundSteps") -> dict[str, StepPrediction]:
        times, here = around.ops.times(), around.platform(self._platform)
        return {name: predict_step(step, here, times) for name, step in self._steps.items()}


class _TimingsAroundSteps:
    """Durations of ops and of the host, measured around the steps of one repetition."""

    def __init__(
        self, pairs: Sequence[tuple[SyntheticModel, CapturedStep]], host: HostOverhead
    ) -> None:
        self.ops = OpTimings(pairs, repeats=_REPEATS, lookups=False)
        self._host = host
        self._turns: list[dict[str, float]] = []

    def measure(self) -> None:
        """Time ops and host once more."""
        self.ops.measure()
        self._turns += self._host.rounds(_TURNS)

    def platform(self, calibrated: Platform) -> Platform:
        """Return the platform with the measured overheads of the host."""
        found, known = self._host.typical(self._turns), calibrated.torch or TorchHost()
        phases = {phase: getattr(found, phase) for phase in PHASES}
        return replace(calibrated, torch=replace(known, **phases))


def compared(
    model: SyntheticModel, backend: str, predicted: Sequence[StepPrediction], measured: Measured
) -> Row:
    """Compare each repetition with the prediction made around it; rows show the medians."""
    predictions = {
        "predicted": [each.predicted[backend] for each in predicted],
        "formula": [each.formula[backend] for each in predicted],
        "naive": [each.naive for each in predicted],
    }
    taken = measured.repetitions()
    errors = {
        key: median(p / m for p, m in zip(predictions[name], taken, strict=True)) - 1
        for key, name in _ERRORS.items()
    }
    low, high = (median(each.ranges[backend][side] for each in predicted) for side in (0, 1))
    parts = [each.parts[backend] for each in predicted]
    more = {
        **{name: median(each) for name, each in predictions.items()},
        **errors,
        "low": low,
        "high": high,
        "measured": measured.seconds,
        "floor": measured.floor,
        "moved": measured.moved,
        "discarded": measured.discarded,
        "parts": {key: median(each[key] for each in parts) for key in parts[0]},
    }
    case = {**asdict(model), "backend": backend, "ranks": RANKS}
    return Row("predict", case, tuple(taken), {}, more)
