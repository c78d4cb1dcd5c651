"""The page of recorded results: of every case of every benchmark the newest line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.table import show_figure
from validation.markdown_tables import markdown_table
from weft.errors import FormatError
from weft.report.text import Column
from weft.units import format_time

_MARKS: dict[Any, str] = {True: "✓", False: "✗"}
_INTRODUCTION = """# How fast is weft, and compared with whom?

Made by `weft bench -o FILE.md` from the recorded results: of every case its newest line, with the
day it was measured and the commit. A ratio over 1 says that the peer took longer. Where a case
promises something, *must* says what and ✗ that it was missed;
[how it is measured and what was tried](notes/benchmarks.md).
"""


def results_page(questions: Mapping[str, str], folder: Path) -> str:
    """Return what was recorded in ``folder`` as one Markdown page, by the names of benchmarks."""
    parts = [_INTRODUCTION]
    for name, question in questions.items():
        path = folder / f"{name}.jsonl"
        rows = newest(read_results(path)) if path.is_file() else []
        if rows:
            table = markdown_table(_columns(rows), [_flat(row) for row in rows])
            parts += [f"## {name}\n", f"{question} {_machines(rows)}\n", table]
    return "\n".join(parts)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read the lines that a benchmark appended."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            row["case"], row["bench"]
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(
                f"line {number} of {path} is no result of a benchmark: {error!r}",
                "Remove the line, or write it again with weft bench.",
            ) from error
        rows.append(row)
    return rows


def newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the last line of each case, in the order in which cases came first."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found[json.dumps(row["case"], sort_keys=True)] = row
    return list(found.values())


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    peers = dict.fromkeys(name for row in rows for name in row.get("peers", {}))
    cases = dict.fromkeys(key for row in rows for key in row["case"])
    return [
        *(Column(f"case.{key}", key, show_figure(key), right=False) for key in cases),
        Column("median", "weft", format_time),
        *(Column(f"{name}.ratio", f"{name}/weft", "{:.2f}".format) for name in peers),
        Column("predicted", "predicted", format_time),
        Column("measured", "measured", format_time),
        Column("error", "error", "{:+.1%}".format),
        Column("must", "must", right=False),
        Column("reached", "reached", right=False),
        Column("mark", "", right=False),
        Column("day", "day", right=False),
        Column("commit", "commit", right=False),
    ]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat = {key: row.get(key) for key in ("median", "must", "reached", "commit")}
    figures = ("predicted", "measured", "error") if "predicted" in row else ("measured",)
    flat |= {key: row.get(key) for key in figures if isinstance(row.get(key), float)}
    flat |= {f"case.{key}": _short(value) for key, value in row["case"].items()}
    for name, peer in row.get("peers", {}).items():
        flat[f"{name}.ratio"] = peer["ratio"]
    return flat | {"mark": _MARKS.get(row.get("met"), ""), "day": str(row.get("date", ""))[:10]}


def _short(value: Any) -> Any:
    """Return a value of a case as a cell: of a list of lists, such as tables, their number."""
    nested = isinstance(value, list) and any(isinstance(each, list) for each in value)
    return len(value) if nested else value


def _machines(rows: list[dict[str, Any]]) -> str:
    """Name the machines that the lines come from."""
    seen = {
        f"{machine['cpu']}, {machine['cores']} cores"
        for row in rows
        if (machine := row.get("machine"))
    }
    return f"({'; '.join(sorted(seen))})" if seen else ""
