"""``weft copies``: how long many small copies from the host's memory take."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On, machine_of
from weft.cli.options import Json, complete_list, names, to_file
from weft.cli.outputs import output_path, print_json, write
from weft.cli.progress import track

if TYPE_CHECKING:
    from weft.hardware import Platform


def complete_way(incomplete: str) -> list[str]:
    """Complete the last of a list of ways."""
    from weft.collectives import FETCH_METHODS

    return complete_list(incomplete, ("all", *FETCH_METHODS))


def copies(
    *,
    block: Annotated[
        str,
        typer.Option(metavar="S,..", help="Sizes of a block, as 4KiB,32KiB or 4KiB:1MiB."),
    ] = "4KiB,8KiB,32KiB",
    count: Annotated[int, typer.Option(metavar="N", help="How many blocks.")] = 4096,
    way: Annotated[
        str,
        typer.Option(
            metavar="W,..",
            help="per-copy, batched, b2b (back to back on the engines' queues), kernel or all.",
            autocompletion=complete_way,
        ),
    ] = "all",
    engines: Annotated[int, typer.Option(metavar="N", help="Engines that b2b uses.")] = 1,
    on: On = None,
    json: Json = False,
    output: Annotated[str | None, to_file("Write all rows as .csv.")] = None,
) -> None:
    """Price every way to fetch the blocks."""
    from weft.collectives import FETCH_METHODS
    from weft.units import parse_sizes

    path, machine = output_path(output, (".csv",)), machine_of(on)
    cases = [
        (size, name) for size in parse_sizes(block) for name in names(way, FETCH_METHODS, "way")
    ]
    rows = [_price(machine, count, *case, engines) for case in track(cases, "pricing")]
    _show(machine, rows, json=json)
    if path:
        write(path, rows, quiet=json)


def _price(machine: "Platform", count: int, size: int, way: str, engines: int) -> dict[str, Any]:
    from weft.collectives import fetch, fetch_platform
    from weft.simulator import simulate

    used = engines if way == "b2b" else 1
    timeline = simulate(
        fetch(count, size, way, engines=used),
        fetch_platform(machine, way, engines=used, block_bytes=size),
    )
    return {
        "way": way,
        "block": size,
        "count": count,
        "nbytes": count * size,
        "engines": 0 if way == "kernel" else used,
        "seconds": timeline.seconds,
        "per_copy": timeline.seconds / count,
        "rate": count * size / timeline.seconds,
        "basis": timeline.basis,
    }


def _show(machine: "Platform", rows: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json("copies", machine.name, rows)
        return
    from weft.report.text import Column, print_table
    from weft.units import format_rate, format_size, format_time

    columns = [
        Column("block", "block", format_size),
        Column("way", "way", right=False, style="bold"),
        Column("seconds", "time", format_time),
        Column("per_copy", "per copy", format_time),
        Column("rate", "rate", format_rate),
        Column("engines", "engines"),
    ]
    title = f"{rows[0]['count'] if rows else 0} blocks from the host to one device of "
    print_table(columns, rows, title=f"{title}{machine.name}, predicted")
