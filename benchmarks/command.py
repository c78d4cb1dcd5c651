"""What ``weft bench`` and ``python -m benchmarks`` do: list, run and print benchmarks."""

from pathlib import Path
from typing import Any

from benchmarks import Bench, Options, Row, find_bench, questions
from benchmarks.machine import append
from benchmarks.results_page import results_page
from benchmarks.table import print_notes, print_rows
from benchmarks.table_of_collectives import print_collective_rows, print_figure_rows
from benchmarks.table_of_predict import print_predict_rows
from weft.cli.outputs import print_json, print_written, track, write
from weft.errors import UsageError
from weft.report.text import Column, print_table

_RESULTS = Path("benchmarks/results")  # of a checkout that is the current folder
_TABLES = {
    "collectives": print_collective_rows,
    "figures": print_figure_rows,
    "predict": print_predict_rows,
}


def list_questions(page: Path | None, *, json: bool) -> None:
    """List the questions, or write their recorded results as a page."""
    if page:
        if not _RESULTS.is_dir():
            raise UsageError(
                f"no recorded results: {_RESULTS} does not exist",
                "Run this at the root of a checkout, or name a benchmark.",
            )
        print_written(write(page, results_page(questions(), _RESULTS)))
        return
    rows = [{"bench": name, "question": question} for name, question in questions().items()]
    if json:
        print_json("bench", None, rows)
        return
    columns = [Column("bench", "bench", right=False), Column("question", "question", right=False)]
    print_table(columns, rows)


def run_benchmark(name: str, output: Path | None, *, json: bool, **options: Any) -> None:
    """Run one benchmark, append its rows to its results, and print them."""
    found = find_bench(name)
    path = output or (_RESULTS / f"{name}.jsonl" if _RESULTS.is_dir() else None)
    rows = list(_measured(found, Options(**options), path))
    if json:
        print_json("bench", None, [row.as_result() for row in rows])
        return
    print(found.question)
    _TABLES.get(found.name, print_rows)(rows)
    print_notes(rows)
    print_written(f"added to {path}" if path else "")


def _measured(found: Bench, options: Options, path: Path | None) -> list[Row]:
    rows = []
    total = found.count(options) if found.count else 0
    for row in track(found.run(options), found.question, total):
        rows.append(row)
        if path:
            append(path, [row])
    return rows
