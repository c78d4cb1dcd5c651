"""``weft tour``: the whole loop on this machine: calibrate, predict, plan, run, compare."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.failure import explain
from weft.errors import UsageError, WeftError

if TYPE_CHECKING:
    from weft.cli.tour_parts import Tour

_NEXT = (
    "Next, for a model of yours (docs/apply.md):\n"
    "  weft predict my.module:step --on here --ranks 2\n"
    "  weft plan my.module:step --on here --ranks 2 -o plan.json\n"
    '  weft.torch.apply("plan.json", model)   in its training script'
)


def tour(
    *,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FOLDER", help="Folder of the report and the traces."
        ),
    ] = "weft-tour",
    again: Annotated[
        bool, typer.Option("--again", help="Calibrate again even if this machine was calibrated.")
    ] = False,
) -> int:
    """Run each part in turn; one that fails does not stop the others."""
    from weft.cli.tour_parts import Tour

    begin = time.monotonic()
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {output!r}: {error.strerror}") from error
    made = Tour(folder, again=again)
    print(
        "Two small models on two ranks of this machine: predicted, planned, run with and without "
        "the plan."
    )
    failed = [
        title
        for number, (title, part) in enumerate(_parts(made), 1)
        if not _do(number, title, part)
    ]
    print(f"\n{_NEXT}")
    print(f"\nThe tour took {time.monotonic() - begin:.0f} s.")
    if failed:
        print(f"Some parts failed: {', '.join(failed)}.")
    return 1 if failed else 0


def _parts(made: "Tour") -> tuple[tuple[str, Callable[[], None]], ...]:
    return (
        ("This machine (weft doctor)", made.examine),
        ("Calibrate it (weft calibrate)", made.calibrate),
        ("Predict a step with Gloo, and plan it (weft predict, weft plan)", made.plan),
        ("Run the step with Gloo and by plan (weft.torch.apply)", made.run),
        ("Report", made.report),
    )


def _do(number: int, title: str, part: Callable[[], None]) -> bool:
    print(f"\n{number}. {title}\n", flush=True)
    try:
        part()
    except WeftError as error:
        sys.stdout.flush()
        sys.stderr.write(explain(error))
        sys.stderr.flush()
        return False
    return True
