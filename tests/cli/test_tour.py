import json
from dataclasses import replace

import pytest

from tests.benchmarks.test_planned import SMALL
from weft.cli import main, tour_parts
from weft.cost.ranges import calibration_noise
from weft.errors import RunError
from weft.hardware import platform
from weft.hardware.measured import MeasuredNoise
from weft.local_runs import contest
from weft.planner.plan import Plan
from weft.report.tour_report import Compared, tour_page


@pytest.fixture
def uncalibrated(monkeypatch, tmp_path):
    """A tour of small models on a machine that is taken for one that needs no calibration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(tour_parts, "MODELS", SMALL)
    monkeypatch.setattr(tour_parts, "_is_current", lambda: True)
    monkeypatch.setattr(contest, "LONG_ENOUGH", 0)
    return tmp_path / "tour"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(150)
def test_the_tour_predicts_plans_runs_compares_and_reports(capsys, uncalibrated):
    assert main(["tour", "-o", str(uncalibrated)]) == 0
    text = capsys.readouterr().out
    for said in ("native core", "with Gloo", "was predicted", "all_reduce of", "The tour took"):
        assert said in text
    names = sorted(path.name for path in uncalibrated.iterdir())
    models = ("dlrm", "transformer")
    runs = [f"run-{model}-{way}.json" for model in models for way in ("gloo", "plan")]
    assert names == sorted([*(f"predicted-{m}.json" for m in models), *runs, "report.html"])
    for name in names:
        assert str(uncalibrated / name) in text
        if name.endswith(".json"):
            assert json.loads((uncalibrated / name).read_text())["traceEvents"]
    assert "The plan for dlrm" in (uncalibrated / "report.html").read_text()


@pytest.mark.torch
def test_a_part_that_fails_does_not_stop_the_tour(capsys, uncalibrated, monkeypatch):
    def fail(*_arguments, **_options):
        raise RunError("no shared memory.", "Give it some.")

    monkeypatch.setattr(tour_parts, "started_torch_teams", fail)
    assert main(["tour", "-o", str(uncalibrated)]) == 1
    written = capsys.readouterr()
    assert written.err == "weft: RunError: no shared memory.\nGive it some.\n"
    assert "step with Gloo" in written.out
    assert (uncalibrated / "report.html").is_file()
    assert "failed: Run the step" in written.out


def test_nothing_is_run_without_a_plan(tmp_path):
    with pytest.raises(RunError, match="no plan to run"):
        tour_parts.Tour(tmp_path).run()


def test_a_busy_machine_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tour_parts, "foreign_share", lambda _: 0.5)
    tour_parts.Tour(tmp_path).examine()
    assert "other processes use 50% of the cores" in capsys.readouterr().out


def test_ranges_of_the_tour_know_how_busy_the_machine_is_now(tmp_path):
    quiet = replace(platform("cpu"), noise=MeasuredNoise(foreign=0.01, spread=0.02, seconds=30.0))
    busy = tour_parts.Tour(tmp_path, foreign=0.5).as_busy(quiet)
    assert calibration_noise(busy.noise).factors[1] > 1.9
    assert calibration_noise(quiet.noise).factors[1] < 1.1
    assert tour_parts.Tour(tmp_path, foreign=0.005).as_busy(quiet) == quiet


def test_a_folder_that_cannot_be_made_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert main(["tour", "-o", str(tmp_path / "file" / "tour")]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (1.25, "saves 20% of the step, 20% was predicted: predicted within 0 points"),
        (2.0, "30 points more than predicted"),
        (1.0, "20 points less than predicted"),
    ],
)
def test_the_page_says_whether_the_plan_was_right(ratio, said):
    plan = Plan("m", "here", 2, (), 5e-3, 4e-3, 3e-3, 5e-3, "a-b")
    compared = Compared("m", plan, (5e-3,), (5e-3 / ratio,), ratio, ("all_reduce: weft: pull",))
    page = tour_page([compared], [], noisy=True)
    assert said in page
    assert "busy with other work" in page
    assert f"{ratio:.2f}x" in page
