"""Schedules written by the command line and priced from files, good and bad ones."""

import json

import pytest

from tests.cli.test_failures import refused
from weft.cli import main
from weft.collectives import collective
from weft.schedule import load, save

MADE = ("collective", "all_reduce", "--on", "mi300x-8", "--size", "1MiB", "--algorithm", "ring")


@pytest.fixture
def file(tmp_path, capsys):
    path = tmp_path / "ring.schedule.json"
    assert main([*MADE, "-o", str(path)]) == 0
    assert f"wrote {path}: predict it with weft collective" in capsys.readouterr().out
    return path


def results(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["results"]


def test_the_schedule_that_was_priced_is_written(file):
    assert load(file) == collective("all_reduce", "ring", num_ranks=8, nbytes=1 << 20)


def test_auto_writes_the_schedule_it_chose(tmp_path, capsys):
    path = tmp_path / "x.schedule.json"
    (row,) = results(capsys, *MADE[:-2], "-o", str(path))
    assert load(path).name == f"{row['chosen']} all_reduce"


def test_a_file_costs_what_its_collective_costs(file, capsys):
    (made,) = results(capsys, *MADE)
    (row,) = results(capsys, "collective", str(file), "--on", "mi300x-8")
    assert list(row) == list(made)
    assert row == made | {"collective": "ring all_reduce", "algorithm": "file", "busbw": None}


@pytest.mark.parametrize(
    ("kind", "size"), [("all_gather", 64), ("reduce_scatter", 64), ("scatter", 9), ("barrier", 0)]
)
def test_the_size_of_a_file_is_counted_as_nccl_tests_does(tmp_path, capsys, kind, size):
    path = tmp_path / "x.json"
    save(collective(kind, "direct", num_ranks=4, nbytes=size), path)
    (row,) = results(capsys, "collective", str(path), "--on", "mi300x-8")
    assert (row["nbytes"], row["ranks"]) == (size, 4)


def test_a_file_needs_no_suffix_of_its_own(file, capsys):
    other = file.rename(file.with_name("ring"))
    assert main(["collective", str(other), "--on", "mi300x-8", "--ranks", "8"]) == 0
    assert "ring all_reduce, 8 ranks on mi300x-8, predicted" in capsys.readouterr().out


@pytest.mark.multiprocess
def test_the_schedule_that_was_run_is_written(tmp_path):
    path = tmp_path / "x.schedule.json"
    arguments = ["all_gather", "--run", "--size", "1KiB", "--algorithm", "ring", "--json"]
    assert main(["collective", *arguments, "-o", str(path)]) == 0
    assert load(path) == collective("all_gather", "ring", num_ranks=2, nbytes=1024)


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        (lambda text: text[:300], "truncated: it ends after 300 bytes", "Write or copy it again."),
        (lambda _: "", "truncated: it ends after 0 bytes", "Write or copy it again."),
        (lambda _: "weft", "Expecting value at line", ""),
        (lambda _: '{"weft": "0.1.0"}', "not a weft schedule", '"version": 1'),
        (
            lambda text: text.replace('"version": 1', '"version": 3'),
            "version 3 is not supported (this weft reads up to version 1",
            "Upgrade weft",
        ),
        (
            lambda text: text.replace('"kind": "Reduce"', '"kind": "Reduse"', 1),
            "kind is 'Reduse': expected a command that may stand here",
            "Did you mean 'Reduce'?",
        ),
        (
            lambda text: text.replace('"num_ranks"', '"ranks"', 1),
            "ranks is 8: expected no such key in a Schedule",
            "'num_ranks'",
        ),
        (
            lambda text: text.replace('"num_flags": 3', '"num_flags": 2'),
            "uses flag 2@",
            "",
        ),
        (
            lambda text: text.replace('"num_ranks": 8', '"num_ranks": 99999999'),
            "is 99,999,999, expected at most 1,048,576",
            "",
        ),
        (
            lambda text: text.replace('"count": 7', '"count": 8'),
            "Wait waits for 8 signals of flag 1@0, which receives 7",
            "Add the missing Signals",
        ),
        (
            lambda text: text.replace('"count": 7', '"count": 6'),
            " Copy ",
            "",
        ),
    ],
)
def test_a_bad_file_is_answered_in_a_line_or_two(file, capsys, change, says, hint):
    file.write_text(change(file.read_text()))
    lines = refused(capsys, "collective", file, "--on", "mi300x-8")
    assert f"{file.name}: " in lines[0]
    assert says in lines[0]
    assert hint in lines[-1]


def test_wrong_use_of_a_file_is_answered_in_a_line_or_two(file, capsys, tmp_path):
    assert (
        "file not found"
        in refused(capsys, "collective", tmp_path / "no.json", "--on", "mi300x-8")[0]
    )
    assert "--on is missing" in refused(capsys, "collective", file)[0]
    assert (
        "for 8 ranks (got 4"
        in refused(capsys, "collective", file, "--on", "mi300x-8", "--ranks", 4)[0]
    )
    assert (
        "has 4 ranks, 8 were asked for" in refused(capsys, "collective", file, "--on", "mi210-4")[0]
    )
    assert "predicted, not run" in refused(capsys, "collective", file, "--run")[0]
