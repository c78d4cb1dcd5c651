import csv
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from weft.cli import main
from weft.cli.verbs.sweep_verb import ask

COPIES = ["sweep", "copies", "--on", "mi300x-8", "--method", "b2b", "--count", "16"]
# A process a core is what users have; one is enough to see that it works.
ONE = ["--workers", "1"]


def test_a_cell_is_a_verb_with_its_rows():
    rows, error = ask(("copies", "--on", "mi300x-8", "--block", "4096", "--method", "b2b"))
    assert not error
    assert rows[0]["block"] == 4096
    rows, error = ask(("copies", "--on", "mi300x-9"))
    assert rows == []
    assert error.startswith("PlatformError: unknown platform 'mi300x-9'")


def test_what_is_nested_becomes_columns():
    rows, _ = ask(("predict", "gpt2", "--on", "h100-8", "--set", "layers=1"))
    assert rows[0]["breakdown.compute"] > 0
    assert "critical_path" not in rows[0]


def test_totals_of_a_verb_stand_in_every_row():
    rows, error = ask(("plan", "dlrm", "--on", "mi300x-8", "--set", "batch=4096"))
    assert not error
    assert all(0 < row["planned"] <= row["baseline"] for row in rows)


@pytest.mark.multiprocess
def test_cells_become_rows_of_a_table(tmp_path, capsys):
    file = tmp_path / "copies.csv"
    assert main([*COPIES, "--block", "4KiB:16KiB", *ONE, "-o", str(file)]) == 0
    said = capsys.readouterr().out
    assert "3 cells of copies --on mi300x-8" in said
    with file.open() as text:
        rows = list(csv.DictReader(text))
    assert [row["block"] for row in rows] == ["4096", "8192", "16384"]
    assert all(float(row["seconds"]) > 0 for row in rows)


@pytest.mark.multiprocess
def test_failing_cells_are_rows_too_and_the_sweep_goes_on(tmp_path, capsys):
    file = tmp_path / "copies.csv"
    machines = ["sweep", "copies", "--on", "mi300x-8,switch(8)@1GB/s", "--method", "b2b"]
    assert main([*machines, "--block", "4KiB", *ONE, "--json", "-o", str(file)]) == 1
    whole = json.loads(capsys.readouterr().out)
    assert (whole["cells"], whole["failed"]) == (2, 1)
    assert "PlatformError: platform switch(8)@1GB/s does" in whole["results"][1]["error"]
    assert whole["results"][0]["seconds"] > 0


@pytest.mark.multiprocess
def test_a_sweep_that_is_done_asks_nothing_again(tmp_path, capsys, monkeypatch):
    file = tmp_path / "copies.csv"
    arguments = [*COPIES, "--block", "4KiB,8KiB", *ONE, "-o", str(file)]
    assert main(arguments) == 0
    first = file.read_text()
    monkeypatch.setattr("weft.sweep.local._WorkerPool.start_worker", None)  # nobody may be asked
    file.unlink()
    assert main(arguments) == 0
    assert file.read_text() == first
    assert main([*COPIES, "--block", "4KiB", *ONE, "-o", str(file)]) == 2
    assert "holds the results of another sweep" in capsys.readouterr().err


@pytest.mark.multiprocess
def test_an_interrupt_keeps_what_is_done(tmp_path):
    sizes = ",".join(str(1 << 10 | n) for n in range(400))
    words = [*COPIES, "--block", sizes, *ONE, "-o", str(tmp_path / "copies.csv")]
    start = "import sys; from weft.cli import main; sys.exit(main(sys.argv[1:]))"
    child = subprocess.Popen(
        [sys.executable, "-c", start, *words], stderr=subprocess.PIPE, text=True
    )
    journal = tmp_path / "copies.csv.sweep.jsonl"
    deadline = time.monotonic() + 60
    while not journal.exists() or len(journal.read_text().splitlines()) < 3:
        assert time.monotonic() < deadline
        assert child.poll() is None
        os.sched_yield()
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "of 400 cells done; the same command goes on from here" in said
    done = len(journal.read_text().splitlines()) - 1
    assert 2 <= done < 400
    assert len((tmp_path / "copies.csv").read_text().splitlines()) == done + 1


@pytest.mark.multiprocess
@pytest.mark.skipif(not find_spec("pyarrow"), reason="pyarrow is not installed")
def test_rows_are_written_as_parquet(tmp_path):
    from pyarrow import parquet

    file = tmp_path / "copies.parquet"
    assert main([*COPIES, "--block", "4KiB,8KiB", *ONE, "-o", str(file)]) == 0
    assert parquet.read_table(file).column("block").to_pylist() == ["4096", "8192"]


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_pyarrow_is_refused_before_the_work(tmp_path, capsys):
    assert main([*COPIES, "-o", str(tmp_path / "copies.parquet")]) == 2
    assert "needs pyarrow" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tour",), "'tour' cannot be swept"),
        (("copies", "--on", ","), "this sweep has no cells"),
        (("copies", "-o", "copies.txt"), "cannot infer the output"),
    ],
)
def test_what_cannot_be_swept_is_said_in_a_line(capsys, arguments, said):
    assert main(["sweep", *arguments]) == 2
    assert said in capsys.readouterr().err
