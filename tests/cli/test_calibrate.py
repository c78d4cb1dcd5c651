"""weft calibrate and weft c3 --run from the command line."""

import json
from importlib.util import find_spec

import pytest

from weft.calibration.microbenchmarks import SETS
from weft.cli import main
from weft.hardware import platform


@pytest.mark.multiprocess
@pytest.mark.timeout(400)
def test_a_calibration_is_a_platform_that_collectives_are_priced_on(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    # Of what takes torch, collectives are enough here; tests/torch has the rest.
    if find_spec("torch") is not None:
        from weft.calibration import torch_calibration

        steps = [step for step in torch_calibration.STEPS if step[0].startswith("collectives")]
        monkeypatch.setattr(torch_calibration, "STEPS", steps)
    assert main(["collective", "all_gather", "--on", "here"]) == 2
    assert "weft calibrate" in capsys.readouterr().err
    assert main(["calibrate", "--anyway"]) == 0
    text = capsys.readouterr().out
    assert "128MiB" in text
    assert "copies go past the caches" in text
    assert f"wrote {tmp_path}" in text
    found = platform("here").require_device().shared
    assert found is not None
    assert len(found.sets) == len(SETS)
    assert main(["collective", "all_gather", "--on", "here", "--size", "1MiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["seconds"] > 0
    assert main(["platforms", "here"]) == 0
    assert "by weft calibrate" in capsys.readouterr().out


def test_a_calibration_is_written_as_toml_only(capsys):
    assert main(["calibrate", "-o", "here.json"]) == 2
    assert ".toml" in capsys.readouterr().err


@pytest.mark.multiprocess
@pytest.mark.timeout(200)
def test_c3_prints_percent_of_ideal_by_strategy(capsys, tmp_path):
    asked = ["c3", "--run", "--collective", "all_gather", "--size", "64KiB", "--ratio", "1"]
    assert main([*asked, "--rounds", "1"]) == 0
    text = capsys.readouterr().out
    assert all(
        name in text for name in ("concurrent", "priority", "partition", "dma", "% of ideal")
    )
    path = tmp_path / "c3.csv"
    assert main([*asked, "--rounds", "1", "--json", "-o", str(path)]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert len(path.read_text().splitlines()) == 1 + len(rows)
    keys = {"scenario", "strategy", "t_compute", "t_comm", "serial", "ideal", "seconds", "speedup"}
    assert all(keys | {"percent_of_ideal", "class", "basis"} <= row.keys() for row in rows)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--run"),
        (["--run", "--ratio", "a"], "parse 'a'"),
        (["--run", "--ratio", "0"], "--ratio must be > 0"),
        (["--run", "--ratio", "1,nan"], "--ratio must be > 0"),
        (["--run", "--ratio", "inf"], "--ratio must be > 0"),
        (["--run", "--collective", "barrier"], "barrier cannot be measured"),
        (["--run", "--ranks", "2,4"], "--ranks"),
        (["--run", "--size", "0"], "nbytes must be > 0"),
        (["--run", "--gemm", "64x64x64"], "--gemm"),
        (["--run", "-o", "c3.html"], ".csv"),
    ],
)
def test_c3_says_what_is_wrong(capsys, arguments, says):
    assert main(["c3", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_sweep_is_planned_measured_elsewhere_and_read_back(capsys, tmp_path):
    plan, machine = tmp_path / "plan.csv", tmp_path / "machine.toml"
    asked = ["calibrate", "--sweep", str(plan), "--on", "h200-8"]
    assert main([*asked, "--kernel", "elementwise", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["results"]
    header, *lines = plan.read_text().splitlines()
    assert len(lines) == len(planned) > 30
    took = [
        line.replace(",,", f",{1e6 * (3e-6 + int(line.split(',')[2]) / 2e12)},") for line in lines
    ]
    plan.write_text("\n".join([header, *took]))
    assert main([*asked, "-o", str(machine)]) == 0
    assert main(["kernel", "elementwise", "nbytes=1073741824", "--on", str(machine), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.split("machine.toml\n")[-1])["results"]
    assert row["seconds"] == pytest.approx(3e-6 + 2**30 / 2e12, rel=0.03)
    assert main(["calibrate", "--sweep", str(plan)]) == 2
    assert "--on" in capsys.readouterr().err
