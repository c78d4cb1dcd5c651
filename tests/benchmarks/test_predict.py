"""Random models, what is believed of a measurement, and how errors are summed up."""

from dataclasses import asdict

import pytest

from benchmarks.random_models import draw, rough_seconds
from benchmarks.rows import Options, Row
from benchmarks.table_of_predict import print_predict_rows, summaries
from benchmarks.training_runs import Measured, TimedSlice, gathered
from weft.local_runs.synthetic_models import SyntheticDlrm, model_of


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

    assert model_of(json.loads(json.dumps(asdict(model)))) == model


def _visit(seconds, probe=1.0, own=0.98, foreign=0.0):
    return TimedSlice([seconds], probe, own, foreign)


def test_visits_without_the_cores_to_themselves_do_not_count():
    quiet = [_visit(1.0), _visit(1.02, 1.05, 0.97, 0.01)]
    busy = [_visit(9.0, foreign=0.5), _visit(9.0, own=0.5)]
    found = Measured([[*quiet, *busy], quiet])
    assert found.repetitions() == pytest.approx([1.01, 1.01])
    assert found.discarded == pytest.approx(1 / 3)


def test_slow_memory_is_said_and_counts():
    found = Measured([[_visit(1.0, probe=1.0)], [_visit(3.0, probe=2.0)]])
    assert found.seconds == 2.0
    assert found.discarded == 0.0
    assert found.moved == pytest.approx(1.95 / 1.05 - 1)


def test_where_everything_was_disturbed_everything_counts():
    found = Measured([[_visit(3.0, foreign=0.5)], [_visit(5.0, foreign=0.5)]])
    assert found.seconds == 4.0
    assert found.discarded == 1.0


@pytest.mark.torch
def test_each_repetition_is_compared_with_what_was_predicted_around_it():
    """The machine was slow for one of them, and for the ops around it: nothing is off."""
    pytest.importorskip("torch")
    from benchmarks.predict import compared
    from benchmarks.torch_step_prediction import StepPrediction

    measured = Measured([[_visit(1.0)], [_visit(2.0)], [_visit(1.0)]])
    told = [
        StepPrediction({"gloo": x}, {"gloo": (0.5, 9.0)}, {"gloo": 1.0}, 0.5, {"gloo": {"host": x}})
        for x in (1.1, 2.2, 1.1)
    ]
    row = compared(draw(1)[0], "gloo", told, measured)
    assert row.more["error"] == pytest.approx(0.1)
    assert row.more["predicted"] == pytest.approx(1.1)
    assert row.more["parts"] == {"host": pytest.approx(1.1)}


def test_the_floor_is_how_far_repetitions_are_apart():
    found = Measured([[_visit(x)] for x in (1.0, 1.1, 0.9)])
    assert found.floor == pytest.approx(0.1)


def test_repetitions_are_put_together():
    one, two = {("a", "gloo"): [_visit(1.0)]}, {("a", "gloo"): [_visit(3.0)]}
    assert gathered([one, two])["a", "gloo"].repetitions() == [1.0, 3.0]


def _row(model, error):
    case = {"model": model, "backend": "gloo", "seed": 1}
    more = {"predicted": 1.0 + error, "measured": 1.0, "error": error, "floor": 0.01}
    more |= {"low": 0.9, "high": 1.1, "moved": 0.1}
    more |= {"formula": 1.1, "formula_error": 0.1, "naive": 0.5, "naive_error": -0.5}
    return Row("predict", case, (1.0,), {}, {**more, "discarded": 0.0})


def test_errors_are_summed_up_by_kind_of_model(capsys):
    rows = [_row("dlrm", 0.04), _row("dlrm", -0.09), _row("gpt2", 0.02)]
    found = {(each["what"], each["how"]): each for each in summaries(rows)}
    mine = found["DLRMs", "ops timed"]
    assert (mine["geomean"], mine["mean"], mine["worst"]) == pytest.approx((0.06, 0.065, 0.09))
    assert found["transformers", "naive sum"]["worst"] == pytest.approx(0.5)
    print_predict_rows(rows)
    shown = capsys.readouterr().out
    assert "naive sum" in shown
    assert "3 of 3 measured steps lie in the predicted range" in shown


def test_tables_are_spread_over_both_ranks():
    torch = pytest.importorskip("torch")
    assert torch
    from benchmarks.torch_trained_models import held

    model = next(each for each in draw(1) if isinstance(each, SyntheticDlrm))
    both = held(model, 0) + held(model, 1)
    assert sorted(both) == list(range(len(model.tables)))
    assert held(model, 0)
    assert held(model, 1)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(300)
def test_small_models_are_predicted_and_trained(monkeypatch):
    pytest.importorskip("torch")
    from benchmarks import predict
    from weft.hardware import platform

    small = SyntheticDlrm(((64, 2, 0.0), (32, 1, 1.05)), 8, (16, 8), (8, 1), 32)
    monkeypatch.setattr(predict, "draw", lambda _: (small,))
    monkeypatch.setattr(predict, "current_platform", lambda: platform("h100-8"))
    rows = list(predict.run(Options(seeds=(1,), rounds=1)))
    assert [row.case["backend"] for row in rows] == ["gloo", "weft"]
    assert all(row.more["low"] <= row.more["predicted"] <= row.more["high"] for row in rows)
