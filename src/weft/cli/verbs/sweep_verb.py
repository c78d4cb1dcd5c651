"""``weft sweep``: the same question for many platforms, sizes, settings and strategies."""

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import Json, to_file
from weft.cli.outputs import output_path, print_json, print_written, track
from weft.errors import UnknownNameError, UsageError, nearest
from weft.report.text import Column, print_table

if TYPE_CHECKING:
    from weft.sweep import CellAnswer, Journal, Sweep

VERBS = ("predict", "collective", "c3", "copies", "kernel", "plan", "serve", "shard")
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_JOURNAL = ".sweep.jsonl"
_SHOWN = 40  # rows of a table on the terminal
_ANSWERS = (
    *("algorithm", "scenario", "strategy", "fetch", "method", "seconds", "breakdown.exposed"),
    *("busbw", "speedup", "baseline", "planned", "ttft", "itl", "throughput"),
)


def complete_verb(incomplete: str) -> list[str]:
    """Complete the name of a verb that can be swept."""
    return [verb for verb in VERBS if verb.startswith(incomplete)]


def sweep(
    context: typer.Context,
    verb: Annotated[str, typer.Argument(metavar="VERB", autocompletion=complete_verb)],
    *,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of processes; default: one per core.")
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Use this Dask scheduler, such as tcp://host:8786."),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Timeout of a cell.")] = 600.0,
    json: Json = False,
    output: Annotated[
        str | None,
        to_file(
            "Write all rows as .csv or .parquet. Answers are also stored next to it as they arrive "
            f"({_JOURNAL}): the same command again goes on where it was."
        ),
    ] = None,
) -> int:
    """Compute every cell; return 1 if some have no answer."""
    from weft.sweep import Journal, cells_of

    path = output_path(output, (".csv", ".parquet"))
    _check(verb, path)
    found = cells_of([verb, *context.args])
    journal = Journal.open(found, path and path.with_name(path.name + _JOURNAL))
    try:
        for answer in _answers(found, journal, workers, dask, timeout):
            journal.add(answer)
    except KeyboardInterrupt:
        _interrupted(journal)
        raise
    finally:
        if path and journal.answers:
            write_rows(path, journal.rows())
    _show(journal, path, json=json)
    if journal.failed:
        sys.stderr.write(f"weft: {journal.failed} of {len(found.cells)} cells have no answer.\n")
    return 1 if journal.failed else 0


def _check(verb: str, path: Path | None) -> None:
    """Raise early on what would fail after all the work."""
    if verb not in VERBS:
        raise UnknownNameError(f"{verb!r} cannot be swept", nearest(verb, VERBS))
    if path and path.suffix == ".parquet":
        _arrow()


def _arrow() -> Any:
    try:
        from pyarrow import parquet, table
    except ModuleNotFoundError as error:
        raise UsageError(
            "Parquet output needs pyarrow, which is not installed",
            "Run pip install pyarrow, or use -o NAME.csv.",
        ) from error
    return table, parquet.write_table


def _answers(
    found: "Sweep", journal: "Journal", workers: int | None, dask: str | None, timeout: float
) -> "Iterator[CellAnswer]":
    from weft.sweep import run_local, run_on_dask

    numbers = journal.open_cells
    if dask is not None:
        answers = run_on_dask(found.cells, numbers, ask, address=dask, timeout=timeout)
    else:
        cores = len(os.sched_getaffinity(0)) if workers is None else workers
        answers = run_local(found.cells, numbers, ask, workers=cores, timeout=timeout)
    yield from track(answers, f"{len(found.cells)} cells", len(numbers))


def _interrupted(journal: "Journal") -> None:
    done, whole = len(journal.answers), len(journal.sweep.cells)
    then = "the same command goes on from here" if journal.path else "with -o it could be continued"
    sys.stderr.write(f"weft: interrupted with {done} of {whole} cells done; {then}.\n")


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a table in the format of its suffix; the old file is replaced atomically."""
    part = path.with_name(path.name + ".part")
    if path.suffix == ".csv":
        from weft.report.results import results_csv

        part.write_text(results_csv(rows), encoding="utf-8")
    else:
        table, write_table = _arrow()
        keys = dict.fromkeys(key for row in rows for key in row)
        columns = {key: [row.get(key) for row in rows] for key in keys}
        write_table(table(columns), part)
    part.replace(path)


def _show(journal: "Journal", path: Path | None, *, json: bool) -> None:
    rows = journal.rows()
    if json:
        whole = len(journal.sweep.cells)
        print_json("sweep", None, rows, cells=whole, failed=journal.failed)
        return
    keys = dict.fromkeys(key for cell in journal.sweep.cells for key, _ in cell.values)
    columns = [Column(key, key, right=False) for key in keys]
    answers = [key for key in _ANSWERS if key not in keys and any(key in row for row in rows)]
    columns += [Column(key, key, _shown, right=False) for key in answers]
    columns += [Column("error", "error", right=False)] if journal.failed else []
    title = f"{len(journal.answers)} cells of {' '.join(journal.sweep.words)}"
    print_table(columns, rows[:_SHOWN], title=title)
    if len(rows) > _SHOWN:
        print(f"and {len(rows) - _SHOWN} more rows{'' if path else ': use -o FILE.csv'}")
    if path:
        print_written(f"wrote {path}: {len(rows)} rows, {journal.failed} cells failed")


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# stdout is captured for the whole process, so threads of a cluster worker take turns.
_TURN = threading.Lock()


# A cell is a verb run with ``--json``: its rows, or its error.
def ask(words: tuple[str, ...]) -> tuple[list[dict[str, Any]], str]:
    """Run one command and return its rows, and its error if it failed."""
    from weft.cli import main

    out, err = io.StringIO(), io.StringIO()
    try:
        with _TURN, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words, "--json"])
    except Exception as error:  # noqa: BLE001 - a bug of weft costs its cell, not the sweep
        return [], f"{type(error).__name__}: {error}"
    if code == 2 or not out.getvalue():
        return [], _one_line(err.getvalue()) or f"ended with exit code {code}"
    found = json.loads(out.getvalue())
    wrong = _one_line(err.getvalue()) if code else ""
    # Totals that a verb reports besides its rows, such as those of a plan, are added to each row.
    whole = {key: value for key, value in found.items() if isinstance(value, (int, float))}
    return [whole | _flat(row) for row in found["results"]], wrong


def _one_line(text: str) -> str:
    return " ".join(text.split()).removeprefix("weft: ")


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted columns; lists are dropped.

    >>> _flat({"seconds": 1.0, "breakdown": {"compute": 0.5}, "critical_path": []})
    {'seconds': 1.0, 'breakdown.compute': 0.5}
    """
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            found[prefix + key] = value
    return found
