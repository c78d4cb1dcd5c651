"""A library's collectives on the command line."""

import json

import pytest

from weft.cli import main
from weft.cli.collective_pricing import LibraryAlgorithm, library_algorithm
from weft.cost.nccl import library_price
from weft.errors import UsageError
from weft.hardware import platform
from weft.hardware.libraries import library

pytestmark = pytest.mark.thorough

ASK = ("collective", "all_reduce", "--on", "h100-8", "--size", "1MiB,1GiB")


def rows_of(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["results"]


def test_a_library_is_an_algorithm(capsys):
    small, large = rows_of(capsys, *ASK, "--algorithm", "nccl")
    price = library_price(platform("h100-8"), "all_reduce", 1 << 20)
    assert small["seconds"] == pytest.approx(price.seconds)
    assert (small["algorithm"], small["basis"]) == ("nccl", "predicted")
    assert "note" not in small
    assert large["note"].startswith("outside measured sizes")


def test_notes_are_printed_once_with_their_sizes(capsys):
    assert main([*ASK, "--algorithm", "nccl,ring"]) == 0
    text = capsys.readouterr().out
    assert "nccl of 1 GiB: outside measured sizes (512 B to 512 MiB)" in text
    assert main(["collective", "all_gather", "--on", "h200-8", "--algorithm", "nccl"]) == 0
    assert capsys.readouterr().out.count("nccl: inherited: curves of h100") == 1


def test_auto_and_all_are_weft_s_own(capsys):
    every = rows_of(capsys, *ASK, "--algorithm", "all")
    assert not {row["algorithm"] for row in every} & {"nccl"}


def test_versions_and_dtypes_are_part_of_the_name(capsys):
    names = ("nccl", "nccl-2.27.3", "nccl+int8", "nccl-2.27.3+int8")
    rows = rows_of(capsys, *ASK, "--algorithm", ",".join(names))
    assert [row["algorithm"] for row in rows[:4]] == list(names)
    assert len({row["seconds"] for row in rows[:4]}) == 4
    assert library_algorithm("nccl-2.27.3+int8") == LibraryAlgorithm("nccl", "2.27.3", "int8")
    assert library_algorithm("ring") is None
    assert library_algorithm("dma+prelaunch") is None


def test_an_unmeasured_dtype_is_refused():
    with pytest.raises(UsageError, match="dtype 'fp4'") as caught:
        library_algorithm("nccl+fp4")
    assert "bfloat16" in caught.value.hint


def test_a_library_cannot_be_run_from_here(capsys):
    assert main(["collective", "all_reduce", "--run", "--size", "1KiB", "--algorithm", "nccl"]) == 2
    assert "nccl can be predicted, not run" in capsys.readouterr().err


def test_its_timeline_is_one_kernel_of_communication(capsys):
    assert main([*ASK, "--algorithm", "nccl", "-o", "-"]) == 0
    events = json.loads(capsys.readouterr().out)["traceEvents"]
    assert any(event["name"] == "nccl all_reduce" for event in events)
    assert main([*ASK, "--algorithm", "nccl", "--timeline"]) == 0
    drawn = capsys.readouterr().out.splitlines()
    assert "▓▓▓▓" in next(line for line in drawn if line.startswith("stream0@0"))


def test_its_schedule_can_be_written_and_priced_again(capsys, tmp_path):
    file = tmp_path / "nccl.schedule.json"
    assert main([*ASK, "--algorithm", "nccl", "-o", str(file)]) == 0
    capsys.readouterr()
    (row,) = rows_of(capsys, "collective", str(file), "--on", "h100-8")
    price = library_price(platform("h100-8"), "all_reduce", 1 << 30)
    assert row["seconds"] == pytest.approx(price.seconds)


def test_a_platform_shows_the_errors_of_its_library(capsys):
    assert main(["platforms", "b200-8"]) == 0
    text = capsys.readouterr().out
    assert "nccl, fitted: NVIDIA's tables" in text
    assert text.count("2.29.2  all_reduce") == 2
    assert main(["platforms", "v100-8"]) == 0
    assert "relative error on a100-8" in capsys.readouterr().out
    rows = rows_of(capsys, "platforms", "b200-8")
    errors = {row["key"]: row for row in rows if row["key"].startswith("nccl.")}
    assert len(errors) == len(library("nccl", "b200").fits)
    newest = errors["nccl.2.29.2.all_gather.any.2,4,8"]
    assert (newest["basis"], newest["value"]) == ("fitted", newest["errors"]["held_back"])


def test_a_platform_without_a_library_shows_none(capsys):
    assert not [r for r in rows_of(capsys, "platforms", "mi300x-8") if r["key"].startswith("nccl")]
