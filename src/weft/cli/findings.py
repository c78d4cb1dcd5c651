"""The table of ``weft doctor``."""

from collections.abc import Sequence

from weft.cli.checkup import Finding
from weft.report.text import Column, print_table

_MARKS = {"on": "✓", "off": "-", "broken": "✗"}


def print_findings(findings: Sequence[Finding]) -> None:
    """Print one line per component, with a status mark."""
    columns = [
        Column("mark", "", right=False, style="bold"),
        Column("name", "part", right=False),
        Column("detail", "", right=False),
    ]
    rows = [
        {"mark": _MARKS[each.state], "name": each.name, "detail": each.detail} for each in findings
    ]
    print_table(columns, rows)
