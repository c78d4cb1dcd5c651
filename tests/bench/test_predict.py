"""Random models, what is believed of a measurement, and how errors are summed up."""

import pytest

from weft.bench.drawn_models import Dlrm, case_of, draw, model_of, rough_seconds
from weft.bench.rows import Row
from weft.bench.trained import Measured, Visit
from weft.cli.bench_predict import print_predict_rows, summaries


def test_a_seed_gives_the_same_models_and_another_gives_others():
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


@pytest.mark.parametrize("seed", range(1, 21))
def test_steps_are_long_enough_to_be_measured(seed):
    assert all(0.03 < rough_seconds(model) < 0.3 for model in draw(seed))


def test_all_kinds_of_models_are_drawn():
    kinds = {model.model for seed in range(1, 21) for model in draw(seed)}
    assert kinds == {"dlrm", "gpt2", "bert", "llama"}


@pytest.mark.parametrize("model", draw(3), ids=lambda model: model.model)
def test_a_model_survives_its_case(model):
    import json

    assert model_of(json.loads(json.dumps(case_of(model)))) == model


def test_disturbed_visits_do_not_count():
    calm = [Visit(1.0, 1.0, 0.98, 0.0), Visit(1.02, 1.05, 0.97, 0.01)]
    busy = [Visit(9.0, 1.0, 0.98, 0.5), Visit(9.0, 2.0, 0.98, 0.0), Visit(9.0, 1.0, 0.5, 0.0)]
    found = Measured([[*calm, *busy], calm])
    assert found.seconds == pytest.approx(1.01)
    assert found.discarded == pytest.approx(3 / 7)


def test_where_everything_was_disturbed_everything_counts():
    found = Measured([[Visit(3.0, 1.0, 0.98, 0.5)], [Visit(5.0, 1.0, 0.98, 0.5)]])
    assert found.seconds == 4.0
    assert found.discarded == 1.0


def test_the_floor_is_how_far_repetitions_are_apart():
    found = Measured([[Visit(x, 1.0, 1.0, 0.0)] for x in (1.0, 1.1, 0.9)])
    assert found.floor == pytest.approx(0.1)


def _row(model, error):
    case = {"model": model, "backend": "gloo", "seed": 1}
    more = {"predicted": 1.0 + error, "measured": 1.0, "error": error, "floor": 0.01}
    more |= {"formula": 1.1, "formula_error": 0.1, "naive": 0.5, "naive_error": -0.5}
    return Row("predict", case, (1.0,), {}, {**more, "discarded": 0.0})


def test_errors_are_summed_up_by_kind_of_model(capsys):
    rows = [_row("dlrm", 0.04), _row("dlrm", -0.09), _row("gpt2", 0.02)]
    found = {(each["what"], each["how"]): each for each in summaries(rows)}
    mine = found["DLRMs", "ops timed"]
    assert (mine["geomean"], mine["mean"], mine["worst"]) == pytest.approx((0.06, 0.065, 0.09))
    assert found["transformers", "naive sum"]["worst"] == pytest.approx(0.5)
    print_predict_rows(rows)
    assert "naive sum" in capsys.readouterr().out


def test_tables_are_spread_over_both_ranks():
    torch = pytest.importorskip("torch")
    assert torch
    from weft.bench.torch_models import held

    model = next(each for each in draw(1) if isinstance(each, Dlrm))
    both = held(model, 0) + held(model, 1)
    assert sorted(both) == list(range(len(model.tables)))
    assert held(model, 0)
    assert held(model, 1)
