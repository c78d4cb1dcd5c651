"""``weft copies``: the duration of many small copies from host memory."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On, machine_of
from weft.cli.options import Json, complete_list, names, to_file
from weft.cli.outputs import output_path, print_json, print_written, track, write
from weft.report.text import Column, print_table
from weft.units import format_rate, format_size, format_time, parse_sizes

if TYPE_CHECKING:
    from weft.hardware import Platform


def complete_method(incomplete: str) -> list[str]:
    """Complete the last of a list of methods."""
    from weft.collectives import FETCH_METHODS

    return complete_list(incomplete, ("all", *FETCH_METHODS))


def copies(
    *,
    block: Annotated[
        str,
        typer.Option(metavar="S,..", help="Block sizes, such as 4KiB,32KiB or 4KiB:1MiB."),
    ] = "4KiB,8KiB,32KiB",
    count: Annotated[int, typer.Option(metavar="N", help="Number of blocks.")] = 4096,
    method: Annotated[
        str,
        typer.Option(
            metavar="W,..",
            help="per-copy, batched, b2b (back to back on the engines' queues), kernel or all.",
            autocompletion=complete_method,
        ),
    ] = "all",
    engines: Annotated[int, typer.Option(metavar="N", help="Number of engines for b2b.")] = 1,
    on: On = None,
    json: Json = False,
    output: Annotated[str | None, to_file("Write all rows as .csv.")] = None,
) -> None:
    """Predict every method of fetching the blocks."""
    from weft.collectives import FETCH_METHODS

    path, machine = output_path(output, (".csv",)), machine_of(on)
    cases = [
        (size, name)
        for size in parse_sizes(block)
        for name in names(method, FETCH_METHODS, "--method")
    ]
    rows = [_price(machine, count, *case, engines) for case in track(cases, "pricing")]
    note = write(path, rows) if path else ""
    _show(machine, rows, json=json)
    print_written(note, quiet=json)


def _price(machine: "Platform", count: int, size: int, method: str, engines: int) -> dict[str, Any]:
    from weft.collectives import fetch, fetch_platform
    from weft.simulator import simulate

    used = engines if method == "b2b" else 1
    timeline = simulate(
        fetch(count, size, method, engines=used),
        fetch_platform(machine, method, engines=used, block_bytes=size),
    )
    return {
        "method": method,
        "block": size,
        "count": count,
        "nbytes": count * size,
        "engines": 0 if method == "kernel" else used,
        "seconds": timeline.seconds,
        "per_copy": timeline.seconds / count,
        "rate": count * size / timeline.seconds,
        "basis": timeline.basis,
    }


def _show(machine: "Platform", rows: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json("copies", machine.name, rows)
        return
    columns = [
        Column("block", "block", format_size),
        Column("method", "method", right=False, style="bold"),
        Column("seconds", "time", format_time),
        Column("per_copy", "per copy", format_time),
        Column("rate", "rate", format_rate),
        Column("engines", "engines"),
    ]
    title = f"{rows[0]['count'] if rows else 0} blocks from the host to one device of "
    print_table(columns, rows, title=f"{title}{machine.name}, predicted")
