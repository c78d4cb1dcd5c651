"""``weft doctor``: what works on this machine."""

from typing import Annotated

import typer

from weft.cli.options import Json
from weft.cli.outputs import print_json
from weft.report.text import Column, print_table

_MARKS = {"on": "✓", "off": "-", "broken": "✗"}


def doctor(
    *,
    ranks: Annotated[int, typer.Option(min=1, metavar="N", help="Number of ranks.")] = 2,
    json: Json = False,
) -> int:
    """Check this machine; return 1 if something required does not work."""
    from weft.cli.checkup import examine

    findings = list(examine(ranks))
    if json:
        print_json("doctor", None, [each.as_row() for each in findings])
    else:
        columns = [
            Column("mark", "", right=False, style="bold"),
            Column("name", "part", right=False),
            Column("detail", "", right=False),
        ]
        print_table(columns, [each.as_row() | {"mark": _MARKS[each.state]} for each in findings])
    return 1 if any(each.state == "broken" for each in findings) else 0
