"""How far predicted steps of training are from measured ones, on this machine."""

import sys
from collections.abc import Iterator, Mapping, Sequence

from weft.bench.drawn_models import RANKS, Drawn, case_of, draw
from weft.bench.rows import Options, Row
from weft.bench.torch_foretold import Foretold, captured, current_platform, foretell
from weft.bench.trained import BACKENDS, Measured, gathered, repetition
from weft.hardware import Platform
from weft.torch.op_calls import OpCall
from weft.torch.op_times import Repeated, repeat_ops, together, typical
from weft.torch.steady import forked_ranks
from weft.torch.timed_steps import CapturedStep

QUESTION = "How far are predicted training steps from measured ones, on this machine?"
SEEDS = (1, 2, 3)
_TOGETHER = 2  # seeds whose models are measured in turn: processes are started for all of them
_REPEATS = 3  # of an op before each repetition of the steps
_ERRORS = {
    "error": "predicted",
    "formula_error": "formula",
    "naive_error": "naive",
}
_LOADED = ("torch", "torch.nn.parallel", "weft.torch.op_times")


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
        self._calls = _unique(self._steps)

    def rows(self, rounds: int) -> Iterator[Row]:
        """Measure and give a row for each model and backend."""
        passes, found = [], []
        with forked_ranks(_LOADED):
            for number in range(rounds):
                shown = ", ".join(map(str, self._seeds))
                print(f"seeds {shown}: repetition {number + 1} of {rounds}", file=sys.stderr)
                passes.append(repeat_ops(self._calls, repeats=_REPEATS))
                found.append(repetition(self._models))
        repeated = together(passes)
        told = self._told(repeated)
        for (name, backend), measured in gathered(found).items():
            yield _row(self._models[name], backend, told[name], measured)

    def _told(self, repeated: Sequence[Sequence[Repeated]]) -> dict[str, Foretold]:
        times = dict(zip(self._calls, typical(repeated), strict=True))
        return {name: foretell(step, self._platform, times) for name, step in self._steps.items()}


def _unique(steps: Mapping[str, CapturedStep]) -> list[OpCall]:
    return list(dict.fromkeys(call for step in steps.values() for call in step.unique))


def _row(model: Drawn, backend: str, told: Foretold, measured: Measured) -> Row:
    seconds = measured.seconds
    low, high = told.ranges[backend]
    predictions = {
        "predicted": told.predicted[backend],
        "formula": told.formula[backend],
        "naive": told.naive,
    }
    errors = {key: predictions[name] / seconds - 1 for key, name in _ERRORS.items()}
    more = {
        **predictions,
        **errors,
        "low": low,
        "high": high,
        "measured": seconds,
        "floor": measured.floor,
        "pace": measured.pace,
        "typical": measured.typical,
        "discarded": measured.discarded,
        "parts": told.parts[backend],
    }
    case = {**case_of(model), "backend": backend, "ranks": RANKS}
    return Row("predict", case, tuple(measured.clean()), {}, more)
