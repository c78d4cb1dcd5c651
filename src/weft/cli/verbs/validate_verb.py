"""``weft validate``: every published figure, compared with weft's. Needs a checkout."""

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import Json, to_file
from weft.cli.outputs import output_path
from weft.cli.verbs.bench_verb import checkout_module


def complete_group(incomplete: str) -> list[str]:
    """Complete the name of a group of figures."""
    names: tuple[str, ...] = checkout_module("validation").group_names()
    return [name for name in names if name.startswith(incomplete)]


def validate(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME..]", autocompletion=complete_group, show_default=False),
    ] = None,
    *,
    plots: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Write the plots of the groups to this folder."),
    ] = None,
    json: Json = False,
    output: Annotated[
        str | None,
        to_file("Write the tables as .html, .md or .csv."),
    ] = None,
) -> int:
    """Compute the figures of some groups or of all; return 1 if one exceeds its limit."""
    path = output_path(output, (".html", ".md", ".csv"))
    command = checkout_module("validation.command")
    met: int = command.run_validation(names or (), path, Path(plots) if plots else None, json=json)
    return met
