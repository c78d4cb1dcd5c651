"""``weft diff``: the answer first, rows for programs, and one line for wrong input."""

import json

import pytest

from tests.trace.events import written
from tests.whatif.jobs import exposed_steps
from weft.cli import main

SMALL = ["--set", "layers=2", "--set", "batch=32"]


def test_two_predictions_are_compared(capsys):
    assert main(["diff", "gpt2@h100-8", "gpt2@a100-8", *SMALL, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["verb"] == "diff"
    assert whole["matched"] == 1
    row = whole["results"][0]
    assert {"name", "kind", "before", "after", "difference", "exposed_after"} <= set(row)
    assert whole["after"]["step"] > whole["before"]["step"]


def test_a_step_is_compared_with_itself_as_planned(capsys):
    args = ["diff", "llama-8b", "--planned", "--on", "h100-8", "--set", "fsdp=true"]
    assert main([*args, "--set", "layers=4", "--set", "batch=8"]) == 0
    told = capsys.readouterr().out
    first, note, *_ = told.splitlines()
    assert "as planned takes" in first
    assert "--stack" not in first
    assert note.startswith("  for torch ")
    assert "Where the time went" in told


def test_equal_traces_do_not_differ(tmp_path, capsys):
    path = str(written(tmp_path / "rank0.json", exposed_steps()))
    assert main(["diff", path, path, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["before"] == whole["after"]
    assert all(row["difference"] == 0 for row in whole["results"])


def test_folders_and_patterns_of_traces_are_sides(tmp_path, capsys):
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        written(tmp_path / side / "rank0.json", exposed_steps())
    sides = [str(tmp_path / "before"), str(tmp_path / "after" / "rank*.json")]
    assert main(["diff", *sides, "--json"]) == 0
    assert all(row["difference"] == 0 for row in json.loads(capsys.readouterr().out)["results"])


def test_a_page_has_both_timelines(tmp_path, capsys):
    page = tmp_path / "diff.html"
    assert main(["diff", "gpt2@h100-8", "gpt2@a100-8", *SMALL, "-o", str(page)]) == 0
    text = page.read_text()
    assert text.count("data-timeline=") == 2
    assert "before: gpt2 on h100-8" in text
    capsys.readouterr()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["gpt2@h100-8"], "expected 2"),
        (["gpt2@h100-8", "gpt2@h100-8", "--planned"], "expected 1"),
        (["gpt2", "gpt2"], "--on is missing"),
        (["gpt2@h100-8", "none.json.gz"], "none.json.gz"),
    ],
)
def test_wrong_input_ends_in_one_line(args, words, capsys):
    assert main(["diff", *args]) in (1, 2)
    assert words in capsys.readouterr().err
