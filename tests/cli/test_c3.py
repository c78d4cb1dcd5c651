import csv
import json

import pytest

from weft.cli import main

PAIR = ("c3", "--on", "mi300x-8", "--gemm", "4096x57344x8192")
AGREED = ("scenario", "strategy", "t_compute", "t_comm", "serial", "ideal", "seconds", "speedup")


def results(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["verb"] == "c3"
    return whole["results"]


def test_alone_it_prices_the_list(capsys):
    rows = results(capsys, "c3", "--on", "mi300x-8")
    assert len({row["scenario"] for row in rows}) == 30
    assert len(rows) == 30 * 7
    assert sum(row["chosen"] for row in rows) == 30


def test_a_result_has_the_agreed_keys(capsys):
    rows = results(capsys, *PAIR, "--collective", "all_gather", "--strategy", "dma")
    (row,) = rows
    assert {*AGREED, "percent_of_ideal", "class", "basis"} <= set(row)
    assert row["ideal"] == max(row["t_compute"], row["t_comm"])
    assert row["speedup"] == pytest.approx(row["serial"] / row["seconds"])
    assert row["basis"] == "predicted"


def test_without_a_size_both_take_equally_long(capsys):
    for row in results(capsys, *PAIR, "--strategy", "serial"):
        assert row["class"] == "GC-equal"


def test_the_table_of_one_pair_says_what_to_use(capsys):
    assert main([*PAIR, "--collective", "all_gather", "--size", "896MiB"]) == 0
    out = capsys.readouterr().out
    assert "G-long" in out
    assert "engines leave all 304 units to the GEMM" in out


def test_the_table_of_the_list_ends_with_means_and_mechanisms(capsys):
    assert main(["c3", "--on", "mi300x-8"]) == 0
    out = capsys.readouterr().out
    assert "mean" in out
    assert "without" in out
    assert "best:" in out


def test_serial_alone_has_no_mechanisms_to_switch_off(capsys):
    assert main(["c3", "--on", "mi300x-8", "--strategy", "serial"]) == 0
    assert "without" not in capsys.readouterr().out


def test_units_can_be_given_and_mechanisms_switched_off(capsys):
    masked = results(capsys, *PAIR, "--strategy", "partition", "--units", "64")
    assert {row["units"] for row in masked} == {64}
    plain, steady = (
        results(capsys, *PAIR, "--strategy", "dma", *more) for more in ((), ("--off", "load"))
    )
    assert steady[0]["seconds"] < plain[0]["seconds"]


def test_rows_are_written_as_csv(tmp_path, capsys):
    path = tmp_path / "pairs.csv"
    assert main([*PAIR, "--json", "-o", str(path)]) == 0
    printed = json.loads(capsys.readouterr().out)["results"]
    with path.open() as file:
        assert len(list(csv.DictReader(file))) == len(printed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--on is missing"),
        (("--on", "mi300x-8", "--strategy", "partition", "--units", "12"), "Use 8 or 16"),
        (("--on", "mi300x-8", "--units", "400"), "up to 296"),
        (("--on", "mi300x-8", "--gemm", "4x4"), "cannot read '4x4'"),
        (("--on", "mi300x-8", "--gemm", "64x64x64", "--collective", "gather"), "Known: all_gather"),
        (("--on", "mi300x-8x2"), "expected one node"),
        (("--on", "mi300x-8", "--off", "wave"), "Did you mean 'waves'?"),
        (("--on", "mi300x-8", "--strategy", "dmaa"), "Did you mean 'dma'?"),
        (("--on", "mi300x-8", "--gemm", "64x64x64", "--size", "1001"), "1001 bytes are not"),
        (("--on", "mi300x-8", "--size", "1MiB"), "--size needs"),
        (("--on", "mi300x-8", "--gemm", "64x64x64", "--dtype", "fp7"), "no flop rate"),
        (("--on", "switch(8)@1GiB/s"), "network without devices"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_out(capsys, arguments, said):
    assert main(["c3", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_page_has_a_bar_for_every_strategy(tmp_path):
    page = tmp_path / "page.html"
    pair = ["--gemm", "4096x4096x4096", "--collective", "all_gather", "--size", "64MiB"]
    assert main(["c3", "--on", "mi300x-8", *pair, "-o", str(page)]) == 0
    assert "partition" in page.read_text()
    assert 'class="track"' in page.read_text()


def test_tiles_that_are_taken_from_a_counter_slow_the_gemm_less(capsys):
    pair = ("c3", "--on", "mi300x-8", "--gemm", "8192x8192x8192", "--collective", "all_reduce")
    slower = {}
    for tiles in ("static", "stealing", "lists"):
        asked = ("--strategy", "priority", "--size", "128MiB", "--tiles", tiles)
        (row,) = results(capsys, *pair, *asked)
        assert row["tiles"] == tiles
        slower[tiles] = row["gemm_slowdown"]
    assert 1.33 < slower["static"] < 1.41  # as published, and for the next
    assert 1.10 < slower["stealing"] < 1.14
    assert slower["lists"] > slower["stealing"]


def test_a_schedule_of_tiles_that_does_not_exist_is_refused(capsys):
    assert main([*PAIR, "--tiles", "dealt"]) == 2
    assert "static, stealing, lists" in capsys.readouterr().err
    assert main(["c3", "--on", "mi300x-8", "--tiles", "lists"]) == 2
    assert "--tiles needs --gemm" in capsys.readouterr().err
