"""``weft plan``: rows, totals, files, and errors in a line."""

import json
import zipfile

import pytest

from tests.models.configs import CONFIGS
from tests.trace.events import written
from tests.whatif.jobs import exposed_steps, straggling, uneven_steps
from weft.cli import main
from weft.planner.plan import Plan

pytestmark = pytest.mark.thorough

SMALL = ["gpt2", "--on", "h100-8", "--set", "layers=2"]


def test_a_step_is_planned(capsys):
    assert main(["plan", *SMALL, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["verb"], whole["platform"]) == ("plan", "h100-8")
    assert whole["planned"] <= whole["baseline"]
    row = whole["results"][0]
    assert {"pair", "strategy", "gain", "why", "alternatives"} <= set(row)
    assert {"strategy", "settings", "seconds", "why"} == set(row["alternatives"][0])


def test_what_was_not_chosen_is_shown_on_demand(capsys):
    assert main(["plan", *SMALL]) == 0
    short = capsys.readouterr().out
    assert main(["plan", *SMALL, "--all", "--mode", "heuristic"]) == 0
    assert "not chosen" not in short
    assert "not chosen" in capsys.readouterr().out


LARGE = ["llama-70b", "--on", "h100-8", "--set", "batch=8", "--set", "layers=40"]


def test_a_step_that_does_not_fit_is_planned_anyway_on_demand(capsys):
    one = ["plan", *LARGE, "--set", "tp=1", "--set", "fsdp=false"]
    assert main(one) == 1
    told = capsys.readouterr().err
    assert "NoPlanError" in told
    assert "--anyway" in told
    assert main([*one, "--anyway", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["planned"] <= whole["baseline"]
    assert "it does not fit: it needs" in whole["notes"][0]
    codecs = [
        a for row in whole["results"] for a in row["alternatives"] if "codec" in a["settings"]
    ]
    assert all(a["seconds"] is None for a in codecs)  # no room for what they encode
    assert main([*one, "--anyway"]) == 0
    assert "it does not fit" in capsys.readouterr().out


def test_a_memory_limit_is_left_aside_anyway(capsys):
    asked = ["plan", *SMALL, "--memory", "1MiB"]
    assert main(asked) != 0
    assert "--anyway" in capsys.readouterr().err
    assert main([*asked, "--anyway"]) == 0


@pytest.mark.parametrize("suffix", [".json", ".html", ".csv"])
def test_a_plan_is_written(tmp_path, capsys, suffix):
    file = tmp_path / f"plan{suffix}"
    assert main(["plan", *SMALL, "-o", str(file)]) == 0
    assert f"wrote {file}" in capsys.readouterr().out
    assert file.stat().st_size > 100
    if suffix == ".json":
        assert Plan.from_json(file.read_bytes()).platform == "h100-8"


def test_a_job_that_does_not_fit_as_it_stands_is_spread_and_says_so(capsys):
    assert main(["plan", "llama-8b", "--on", "h100-8x4", "--set", "layers=4"]) == 0
    assert "--set batch=32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpt2"], "--on is missing"),
        (["gpt5", "--on", "h100-8"], "unknown workload 'gpt5'"),
        (["gpt2", "--on", "h100-8", "--mode", "slow"], "unknown mode 'slow'"),
        (["gpt2", "--on", "h100-8", "--codec", "zip"], "codec 'zip'"),
        (["gpt2", "--on", "h100-8", "--budget", "nan"], "--budget must be >= 0 (got nan)"),
        (["gpt2", "--on", "h100-8", "--memory", "1MiB"], "a plan may use 1 MiB"),
        (["step.json.gz", "--on", "h100-8"], "there is no file step.json.gz"),
        (["plan.json", "--emit", "env"], "there is no file plan.json"),
        (["gpt2", "--on", "h100-8", "-o", "plan.txt"], "cannot infer the output"),
        (["gpt2", "--on", "h100-8", "--gpu-hour", "2"], "only to --search layout"),
        (["gpt2", "--on", "h100-8", "--search", "layout", "--memory", "9GB"], "--memory does not"),
        (["gpt2", "--on", "h100-8", "--search", "layout", "--engines", "0"], "--engines does not"),
        (["gpt2", "--on", "h100-8", "--search", "layout", "--emit", "env"], "--emit does not"),
    ],
)
def test_errors_say_what_is_wrong(capsys, words, said):
    assert main(["plan", *words]) in (1, 2)
    assert said in capsys.readouterr().err


def test_the_traces_of_a_job_are_planned_together(tmp_path, capsys):
    paths = [
        written(tmp_path / f"rank{n}.json", straggling(n, (200.0, 700.0)), rank=n) for n in range(2)
    ]
    assert main(["plan", *map(str, paths), "--json"]) == 0
    together = json.loads(capsys.readouterr().out)
    assert [row["pair"] for row in together["results"]] == ["all_reduce 1 MiB"]
    assert any("the slowest of 2" in note for note in together["notes"])
    assert main(["plan", str(paths[0]), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        for path in paths:
            archive.write(path, path.name)
    for named in ("rank*.json", "job.zip", ""):
        assert main(["plan", str(tmp_path / named), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["results"] == together["results"]
        assert main(["predict", str(tmp_path / named), "--on", "h100-8"]) == 2
        assert "expected the trace of one rank (got 2" in capsys.readouterr().err
    # All ranks say that bytes move for 100 us; one alone can only estimate it.
    assert together["results"][0]["seconds"] == pytest.approx(100e-6, rel=0.01)
    assert alone["results"][0]["seconds"] != pytest.approx(100e-6, rel=0.01)


def test_workloads_are_planned_one_at_a_time(tmp_path, capsys):
    path = written(tmp_path / "rank0.json", exposed_steps())
    assert main(["plan", str(path), "gpt2", "--on", "h100-8"]) == 2
    assert "WORKLOAD: 'gpt2'" in capsys.readouterr().err


def test_traces_of_two_jobs_have_no_plan(tmp_path, capsys):
    paths = [
        written(tmp_path / f"rank{n}.json", exposed_steps(), rank=n, world_size=n + 2)
        for n in range(2)
    ]
    assert main(["plan", *map(str, paths)]) == 2
    assert "2 traces are of 2 jobs" in capsys.readouterr().err


def test_a_plan_on_a_replay_that_is_off_is_refused(tmp_path, capsys):
    path = written(tmp_path / "a.json", uneven_steps())
    assert main(["plan", str(path)]) == 1
    assert "ReplayError" in (said := capsys.readouterr().err)
    assert "the replay is off by" in said
    assert main(["plan", str(path), "--anyway"]) == 0
    planned = capsys.readouterr().out
    assert "unreliable: the replay is off by" in planned
    assert "planned for the typical step; the mean of the" in planned
    even = written(tmp_path / "even.json", exposed_steps())
    assert main(["plan", str(even), "--anyway"]) == 0
    assert "planned for the typical step" not in capsys.readouterr().out


@pytest.mark.parametrize("search", [(), ("--search", "layout")])
def test_what_a_configuration_asks_for_and_is_not_modelled_is_named(tmp_path, capsys, search):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS["llama-3-8b"] | {"residual_gate": True}))
    small = ("--set", "layers=2", "--set", "seq=256", "--set", "tp=1", "--set", "micro_batch=1")
    asked = ["plan", str(file), "--on", "h100-8", *small, *search]
    assert main([*asked, "--json"]) == 0
    assert "left out: residual_gate" in " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert main(asked) == 0
    assert "left out: residual_gate" in " ".join(capsys.readouterr().out.split())


def test_a_layout_search_names_the_next_command_with_the_machine_as_given(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('extends = "h100-8"\nname = "mine-8"\n', encoding="utf-8")
    asked = ["gpt2", "--on", "mine.toml", "--ranks", "2", "--set", "layers=2", "--set", "batch=8"]
    assert main(["plan", *asked, "--search", "layout"]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("next: ")]
    assert "--on mine.toml --ranks 2 " in line
