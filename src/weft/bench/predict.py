"""How far predicted steps of training are from measured ones, on this machine."""

from collections.abc import Iterator

from weft.bench.drawn_models import RANKS, Drawn, case_of, draw
from weft.bench.rows import Options, Row
from weft.bench.torch_foretold import Foretold, current_platform, foretell
from weft.bench.trained import BACKENDS, Measured, train

QUESTION = "How far are predicted training steps from measured ones, on this machine?"
SEEDS = (1, 2, 3)


def count_rows(options: Options) -> int:
    """Count what ``run`` will give."""
    return 2 * len(BACKENDS) * len(options.seeds or SEEDS)


def run(options: Options) -> Iterator[Row]:
    """Predict and train one DLRM and one transformer a seed, by Gloo and by weft."""
    platform = current_platform()
    for seed in options.seeds or SEEDS:
        models = {model.model: model for model in draw(seed)}
        told = {name: foretell(model, platform) for name, model in models.items()}
        for (name, backend), measured in train(models, options.rounds).items():
            yield _row(models[name], backend, told[name], measured)


def _row(model: Drawn, backend: str, told: Foretold, measured: Measured) -> Row:
    predicted, seconds = told.predicted[backend], measured.seconds
    more = {
        "predicted": predicted,
        "measured": seconds,
        "error": predicted / seconds - 1,
        "floor": measured.floor,
        "formula": told.formula[backend],
        "formula_error": told.formula[backend] / seconds - 1,
        "naive": told.naive,
        "naive_error": told.naive / seconds - 1,
        "discarded": measured.discarded,
        "parts": told.parts[backend],
    }
    case = {**case_of(model), "backend": backend, "ranks": RANKS}
    return Row("predict", case, tuple(measured.clean()), {}, more)
