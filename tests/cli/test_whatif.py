"""weft whatif as a user calls it."""

from __future__ import annotations

import json
import re

import pytest

from tests.trace.events import text, written
from tests.whatif.jobs import uneven_steps
from tests.whatif.player import Do, play
from weft.cli import main

STEP = [
    Do(seconds=30.0),
    Do(stream=20, seconds=90.0, after=(0,), nccl=True),
    Do(seconds=20.0, after=(1,)),
    Do(back=True),
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(text(play([STEP] * 3)[0]))
    return path


def called(capsys, *words):
    code = main(["whatif", *map(str, words)])
    return code, capsys.readouterr()


def test_json_has_the_keys_that_programs_read(capsys, trace):
    code, out = called(capsys, trace, "--strategy", "partition,links*2", "--json")
    assert code == 0
    (row,) = json.loads(out.out)["results"]
    assert {"measured_step", "replayed_step", "replay_error", "strategies"} <= row.keys()
    assert [each["name"] for each in row["strategies"]] == ["partition", "links*2"]
    assert all({"name", "step", "gain", "why"} <= each.keys() for each in row["strategies"])
    assert row["replay_error"] == pytest.approx(row["replayed_step"] / row["measured_step"] - 1)


def test_what_the_device_cannot_do_changes_nothing(capsys, trace):
    code, out = called(capsys, trace, "--strategy", "dma,links*2", "--json")
    (row,) = json.loads(out.out)["results"]
    assert code == 0
    assert [each["name"] for each in row["strategies"]] == ["links*2"]
    assert any("dma changes nothing here" in note for note in row["notes"])


def test_the_error_of_the_replay_stands_in_the_first_line(capsys, trace):
    _, out = called(capsys, trace, "--strategy", "no-waiting")
    assert "measured" in out.out.splitlines()[0]
    assert "%" in out.out.splitlines()[0]
    assert "assuming" in out.out


def test_no_gain_is_written_as_minus_zero(capsys, trace):
    _, out = called(capsys, trace)
    assert "+0.0%" in out.out
    assert "-0.0%" not in out.out


def test_the_changed_timeline_is_written_for_perfetto(capsys, trace, tmp_path):
    target = tmp_path / "out.json"
    assert called(capsys, trace, "--strategy", "no-waiting", "-o", target)[0] == 0
    names = {event.get("name", "") for event in json.loads(target.read_text())["traceEvents"]}
    assert any(name.startswith("ncclDevKernel") for name in names)


def test_rows_are_written_as_a_table(capsys, trace, tmp_path):
    target = tmp_path / "out.csv"
    assert called(capsys, trace, "--strategy", "partition", "-o", target)[0] == 0
    assert target.read_text().splitlines()[0].startswith("file,name,step,gain")


@pytest.mark.parametrize("words", [("--strategy", "dmaa"), ("--on", "nowhere-8"), ("-o", "x.svg")])
def test_what_cannot_be_is_said_in_one_line(capsys, trace, words):
    code, out = called(capsys, trace, *words)
    assert code == 2
    assert out.err.startswith("weft: ")


def test_a_replay_that_is_far_off_is_refused_with_its_figure(capsys, tmp_path):
    path = written(tmp_path / "a.json", uneven_steps())
    code, out = called(capsys, path)
    assert code == 1
    assert re.search(r"ReplayError: .* the replay is off by [-+]?\d+\.\d%", out.err)
    assert "--anyway" in out.err


def test_a_replay_that_is_far_off_is_used_on_demand_and_marked(capsys, tmp_path):
    path = written(tmp_path / "a.json", uneven_steps())
    code, out = called(capsys, path, "--anyway", "--strategy", "no-host")
    assert code == 0
    assert "unreliable: the replay is off by" in out.out
    assert called(capsys, path, "--anyway", "-o", tmp_path / "a.html")[0] == 0
    assert "Unreliable: the replay is off by" in (tmp_path / "a.html").read_text()
    (row,) = json.loads(called(capsys, path, "--anyway", "--json")[1].out)["results"]
    assert row["reliable"] is False


def test_a_replay_that_is_close_is_marked_so(capsys, trace):
    (row,) = json.loads(called(capsys, trace, "--json")[1].out)["results"]
    assert row["reliable"] is True


def test_a_folder_and_a_glob_stand_for_their_files_and_damaged_ones_are_skipped(
    capsys, trace, tmp_path
):
    (tmp_path / "zero.json").write_text("")
    _, alone = called(capsys, trace, "--strategy", "links*2", "--json")
    (expected,) = json.loads(alone.out)["results"]
    for named in (tmp_path, tmp_path / "*.json"):
        code, out = called(capsys, named, "--strategy", "links*2", "--json")
        (row,) = json.loads(out.out)["results"]
        assert code == 0
        assert row["strategies"] == expected["strategies"]
        assert any("zero.json" in note for note in row["notes"])
