"""``weft platforms``: the hardware catalogue."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import complete_platform
from weft.cli.options import Json
from weft.cli.outputs import print_json
from weft.report.text import Column, page, print_table, print_wrapped
from weft.units import format_count, format_rate

if TYPE_CHECKING:
    from weft.hardware import Platform


def platforms(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The platform whose numbers to list; default: all platforms.",
            autocompletion=complete_platform,
            show_default=False,
        ),
    ] = None,
    *,
    json: Json = False,
) -> None:
    """List the catalogue, or every number of one platform with its source."""
    from weft.cli.library_errors import error_rows, known_libraries, print_errors
    from weft.hardware import platform, platform_names

    if name is None:
        rows = [_summary(platform(each)) for each in platform_names()]
        if json:
            print_json("platforms", None, rows)
        else:
            _print_all(rows)
        return
    found = platform(name)
    libraries = known_libraries(found)
    if json:
        errors = [row for each in libraries for row in error_rows(each)]
        print_json("platforms", found.name, number_rows(found) + errors)
        return
    _print_one(found)
    for each in libraries:
        print_errors(each)


def _summary(platform: "Platform") -> dict[str, Any]:
    from weft.hardware import format_network

    device = platform.device
    return {
        "name": platform.name,
        "title": platform.title,
        "ranks": platform.num_ranks,
        "nodes": platform.num_nodes,
        "network": format_network(platform.levels),
        "link_rate": platform.levels[0].rate,
        "memory_rate": device.memory_rate if device else None,
        "engines": device.dma.num_engines if device and device.dma else 0,
    }


def number_rows(platform: "Platform") -> list[dict[str, Any]]:
    """Return every number, in seconds and bytes, with its source."""
    return [
        {**asdict(entry), "value": _value_at(platform, entry.key)} for entry in platform.entries()
    ]


def _value_at(platform: "Platform", key: str) -> Any:
    value: Any = platform
    for part in key.split("."):
        if isinstance(value, tuple):
            value = value[int(part)]
        else:
            value = value[part] if hasattr(value, "keys") else getattr(value, part)
    return value


def _print_all(rows: list[dict[str, Any]]) -> None:
    columns = [
        Column("name", "platform", right=False, style="bold"),
        Column("ranks", "ranks"),
        Column("link_rate", "link per rank", format_rate),
        Column("memory_rate", "memory", format_rate),
        Column("engines", "DMA engines"),
        Column("title", "what", right=False),
    ]
    print_table(columns, rows)
    print("Clusters: NAMExNODES, such as mi300x-8x16. Networks: switch(8)@400GiB/s,936ns.")
    print("Every number and its source: weft platforms NAME")


def _print_one(platform: "Platform") -> None:
    """Print every number as its file writes it."""
    ranks = format_count(platform.num_ranks, "rank")
    page().write(f"{platform.name}: {platform.title}, {ranks}")
    if platform.description:
        print_wrapped(platform.description)
    columns = [
        Column("key", "number", right=False),
        Column("value", "value"),
        Column("basis", "basis", right=False),
        Column("source", "source", right=False),
    ]
    print_table(columns, [asdict(entry) for entry in platform.entries()])
