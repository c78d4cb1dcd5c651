"""Tables as Markdown, for generated pages of the documentation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.report.text import Column


def markdown_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table; empty columns are omitted."""
    cells = [[_escaped(column.cell(row)) for column in columns] for row in rows]
    used = [number for number in range(len(columns)) if any(row[number] for row in cells)]
    titles = [_escaped(columns[number].title) for number in used]
    rules = ["--:" if columns[number].right else "---" for number in used]
    lines = [titles, rules, *([row[number] for number in used] for row in cells)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escaped(text: str) -> str:
    """Escape a cell so that it stays in its column and contains no HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;")
