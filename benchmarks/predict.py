"""How far predicted steps of training are from measured ones, on this machine."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from benchmarks.random_models import draw
from benchmarks.rows import Options, Row
from benchmarks.torch_seen import Seen
from benchmarks.torch_step_prediction import (
    StepPrediction,
    captured,
    current_platform,
    predict_step,
)
from benchmarks.trained import BACKENDS, Measured, gathered, repetition
from weft.calibration.steady_memory import forked_ranks
from weft.calibration.torch_host_overhead import PHASES, HostOverhead
from weft.calibration.torch_timed_steps import CapturedStep
from weft.hardware import Platform
from weft.hardware.measured import TorchHost
from weft.local_runs.synthetic_models import RANKS, SyntheticModel, case_of

QUESTION = "How far are predicted training steps from measured ones, on this machine?"
SEEDS = (1, 2, 3)
_TOGETHER = 2  # seeds whose models are measured in turn: processes are started for all of them
_REPEATS, _TURNS = 1, 2  # of ops and of the host at a look: five looks in each repetition
_ERRORS = {
    "error": "predicted",
    "formula_error": "formula",
    "naive_error": "naive",
}
_LOADED = ("torch", "torch.nn.parallel", "weft.calibration.torch_host_overhead")


def count_rows(options: Options) -> int:
    """Count what ``run`` will give."""
    return 2 * len(BACKENDS) * len(options.seeds or SEEDS)


def run(options: Options) -> Iterator[Row]:
    """Predict and train one DLRM and one transformer a seed, by Gloo and by weft."""
    platform, seeds = current_platform(), options.seeds or SEEDS
    for first in range(0, len(seeds), _TOGETHER):
        some = seeds[first : first + _TOGETHER]
        yield from _Trial(some, platform).rows(options.rounds)


class _Trial:
    """The models of some seeds: their ops, by themselves, in turn with their steps."""

    def __init__(self, seeds: Sequence[int], platform: Platform) -> None:
        self._seeds, self._platform = seeds, platform
        self._models = {f"{each.model} {seed}": each for seed in seeds for each in draw(seed)}
        self._steps = {name: captured(model) for name, model in self._models.items()}
        self._pairs = [(self._models[name], step) for name, step in self._steps.items()]
        self._host = HostOverhead()

    def rows(self, rounds: int) -> Iterator[Row]:
        """Measure and give a row for each model and backend."""
        told, found = [], []
        with forked_ranks(_LOADED):
            for number in range(rounds):
                shown = ", ".join(map(str, self._seeds))
                print(f"seeds {shown}: repetition {number + 1} of {rounds}", file=sys.stderr)
                looks = _Looks(self._pairs, self._host)
                found.append(repetition(self._models, looks.look))
                told.append(self._told(looks))
        for (name, backend), measured in gathered(found).items():
            yield compared(self._models[name], backend, [each[name] for each in told], measured)

    def _told(self, looks: "_Looks") -> dict[str, StepPrediction]:
        times, here = looks.seen.times(), looks.here(self._platform)
        return {name: predict_step(step, here, times) for name, step in self._steps.items()}


class _Looks:
    """What ops and the host took around the steps of one repetition."""

    def __init__(
        self, pairs: Sequence[tuple[SyntheticModel, CapturedStep]], host: HostOverhead
    ) -> None:
        self.seen = Seen(pairs, repeats=_REPEATS, lookups=False)
        self._host = host
        self._turns: list[dict[str, float]] = []

    def look(self) -> None:
        """Time everything once more."""
        self.seen.look()
        self._turns += self._host.turns(_TURNS)

    def here(self, calibrated: Platform) -> Platform:
        """Return the platform with the overheads of the host that were found."""
        found, known = self._host.typical(self._turns), calibrated.torch or TorchHost()
        phases = {phase: getattr(found, phase) for phase in PHASES}
        return replace(calibrated, torch=replace(known, **phases))


def compared(
    model: SyntheticModel, backend: str, told: Sequence[StepPrediction], measured: Measured
) -> Row:
    """Compare each repetition with what ops predicted around it; the medians of all are shown."""
    predictions = {
        "predicted": [each.predicted[backend] for each in told],
        "formula": [each.formula[backend] for each in told],
        "naive": [each.naive for each in told],
    }
    taken = measured.repetitions()
    errors = {
        key: median(p / m for p, m in zip(predictions[name], taken, strict=True)) - 1
        for key, name in _ERRORS.items()
    }
    low, high = (median(each.ranges[backend][side] for each in told) for side in (0, 1))
    parts = [each.parts[backend] for each in told]
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
    case = {**case_of(model), "backend": backend, "ranks": RANKS}
    return Row("predict", case, tuple(taken), {}, more)
