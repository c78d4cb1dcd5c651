"""``weft doctor``: what works here."""

from typing import Annotated

import typer

from weft.cli.options import Json
from weft.cli.outputs import print_json


def doctor(
    *,
    ranks: Annotated[int, typer.Option(min=1, metavar="N", help="For how many ranks.")] = 2,
    json: Json = False,
) -> int:
    """Examine this machine; 1 if something that should work does not."""
    from weft.cli.checkup import examine

    findings = list(examine(ranks))
    if json:
        print_json("doctor", None, [each.as_row() for each in findings])
    else:
        from weft.cli.findings import print_findings

        print_findings(findings)
    return 1 if any(each.state == "broken" for each in findings) else 0
