"""The page of recorded results."""

import json

import pytest

from benchmarks.results_page import newest, read_results, results_page
from weft.cli import main
from weft.errors import FormatError

BENCH = {"speed": "How fast?"}


def line(nbytes, **more):
    row = {"bench": "speed", "case": {"nbytes": nbytes}, "median": 0.5, "date": "2026-01-02T03:04"}
    return json.dumps(row | more) + "\n"


def test_the_newest_line_of_a_case_stands_on_the_page(tmp_path):
    peers = {"gloo": {"seconds": 1.0, "ratio": 2.0}}
    text = line(1024, median=9.0) + line(2048) + line(1024, peers=peers, met=False, must="3x")
    (tmp_path / "speed.jsonl").write_text(text)
    page = results_page(BENCH, tmp_path)
    assert "| 1 KiB | 500 ms | 2.00 | 3x | ✗ | 2026-01-02 |" in page
    assert page.count("KiB") == 2
    assert "9 s" not in page


def test_a_prediction_stands_next_to_its_error_and_tables_are_counted(tmp_path):
    case = {"tables": [[100, 2, 0.8], [200, 1, 0.0]], "top": [64, 1]}
    text = line(0, case=case, predicted=0.4, measured=0.5, error=-0.2)
    (tmp_path / "speed.jsonl").write_text(text)
    page = results_page(BENCH, tmp_path)
    assert "| 2 | [64, 1] | 500 ms | 400 ms | 500 ms | -20.0% | 2026-01-02 |" in page


def test_benchmarks_without_results_are_left_out(tmp_path):
    assert "speed" not in results_page(BENCH, tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"bench": "x"}', "3"])
def test_a_line_that_is_no_result_is_named(tmp_path, text):
    path = tmp_path / "speed.jsonl"
    path.write_text(line(1) + text + "\n")
    with pytest.raises(FormatError, match=r"line 2 of .*speed\.jsonl"):
        read_results(path)


def test_cases_keep_their_first_order():
    rows = [{"case": {"n": n}, "k": k} for k, n in enumerate((3, 1, 3))]
    assert [row["k"] for row in newest(rows)] == [2, 1]


def test_the_page_is_written_without_a_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "-o", "page.md"]) == 2
    assert "no recorded results" in capsys.readouterr().err
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "benchmarks/results/simulator.jsonl").write_text(line(1))
    assert main(["bench", "-o", "page.md"]) == 0
    assert "## simulator" in (tmp_path / "page.md").read_text()
