"""``weft kernel``: the duration of single kernels."""

import csv
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import complete_platform
from weft.cli.options import Json, to_file, words
from weft.cli.outputs import output_path, print_json, print_written, write
from weft.errors import FormatError, UsageError, nearest
from weft.report.text import Column, print_table
from weft.units import format_time

if TYPE_CHECKING:
    from weft.cost.families import Family
    from weft.hardware import Device

Row = dict[str, Any]
_SHOWN = 40  # rows of a table on the screen; --json and -o have all of them


def complete_kind(incomplete: str) -> list[str]:
    """Complete the name of a family of kernels."""
    from weft.cost.families import FAMILIES

    return [name for name in FAMILIES if name.startswith(incomplete)]


def kernel(
    kind: Annotated[str, typer.Argument(metavar="KIND", autocompletion=complete_kind)],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE,..]..", show_default=False)
    ] = None,
    *,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE.csv", help="One kernel per line, with a header."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="DEVICE",
            help="A device such as h100, or a platform that has it, such as h100-8 or "
            "machine.toml.",
            autocompletion=complete_platform,
        ),
    ] = None,
    json: Json = False,
    output: Annotated[str | None, to_file("Write all rows as .csv.")] = None,
) -> None:
    """Predict kernels of one family, in the given order."""
    from weft.cost.price import find_family
    from weft.hardware import find_device

    if on is None:
        raise UsageError("--on is missing", "Use --on h100, or a platform such as mi300x-8.")
    path, device, family = output_path(output, (".csv",)), find_device(on), find_family(kind)
    given = _combined(family, values or [])
    rows = given if source is None else _read(Path(source), given)
    found = _priced(family, rows, device)
    note = write(path, found) if path else ""
    _show(family, on, found, json=json)
    print_written(note, quiet=json)


def _combined(family: "Family", values: list[str]) -> list[Row]:
    """Parse ``m=1,2 n=4096``: every combination is a row, the last key varies fastest."""
    lists: dict[str, tuple[str, ...]] = {}
    for word in values:
        key, equals, text = word.partition("=")
        if not equals or not words(text):
            columns = ", ".join([*family.columns, *_WORDS])
            raise UsageError(f"cannot parse {word!r} as key=value", f"Keys: {columns}.")
        if key in lists:
            raise UsageError(f"{key} is given twice", f"Use one list: {key}=1,2,4.")
        lists[key] = words(text)
    return [dict(zip(lists, each, strict=True)) for each in product(*lists.values())]


def _read(path: Path, given: list[Row]) -> list[Row]:
    """Read a file; values given on the command line apply to all of its rows."""
    if len(given) > 1:
        raise UsageError("a list of values cannot be combined with --from", "Use one of them.")
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            names = reader.fieldnames or ()
            rows: list[Row] = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"cannot read {path} as CSV: {error}") from error
    twice = [key for key, times in Counter(names).items() if times > 1]
    if twice:
        raise FormatError(f"{path} has several columns {twice[0]!r}", "Name each column once.")
    if not rows:
        raise FormatError(f"{path} has no rows", "Its first line must name the columns.")
    if any(None in row for row in rows):  # where csv puts values without a column
        raise FormatError(f"{path}: a line has more values than columns")
    return [{**row, **given[0]} for row in rows]


def _priced(family: "Family", rows: list[Row], device: "Device") -> list[Row]:
    """Predict rows of one dtype and library together, and return all in their order."""
    from weft.cost.price import price_columns

    keys = _keys(family, rows)
    found: list[Row] = [{} for _ in rows]
    for (dtype, library), mine in _alike(family, rows).items():
        numbers = {key: _numbers(key, rows, mine) for key in keys}
        prices = price_columns(family.name, numbers, device, dtype, library)
        columns = [prices.seconds.tolist(), prices.low.tolist(), prices.high.tolist()]
        for at, row, seconds, low, high in zip(mine, _inputs(numbers), *columns, strict=True):
            found[at] = {
                "kind": family.name,
                **row,
                "dtype": dtype,
                **({"implementation": library} if library else {}),
                "seconds": seconds,
                "low": low,
                "high": high,
                "basis": "predicted",
                "model": prices.model,
            }
    return found


def _keys(family: "Family", rows: list[Row]) -> list[str]:
    """Return the given columns; raise if the family does not have one of them."""
    keys = list(rows[0])
    unknown = [key for key in keys if key not in family.columns and key not in _WORDS]
    if unknown:
        hint = nearest(unknown[0], [*family.columns, *_WORDS])
        raise UsageError(f"{family.name}: unknown column {unknown[0]!r}", hint)
    return [key for key in keys if key not in _WORDS]


_WORDS = ("dtype", "implementation")


def _alike(family: "Family", rows: list[Row]) -> dict[tuple[str, str], list[int]]:
    """Group rows of one dtype and one library."""
    places: dict[tuple[str, str], list[int]] = {}
    for at, row in enumerate(rows):
        key = row.get("dtype") or family.dtype, row.get("implementation") or ""
        places.setdefault(key, []).append(at)
    return places


def _numbers(key: str, rows: list[Row], mine: list[int]) -> Any:
    import numpy as np

    try:
        return np.array([float(rows[at][key]) for at in mine])
    except (TypeError, ValueError):
        at = next(at for at in mine if not _is_number(rows[at][key]))
        raise UsageError(
            f"row {at + 1}: cannot parse {rows[at][key]!r} as a number for {key}",
            f"Write it out, such as {key}=8192.",
        ) from None


def _is_number(text: object) -> bool:
    try:
        float(str(text))
    except ValueError:
        return False
    return True


def _inputs(numbers: dict[str, Any]) -> Iterator[Row]:
    """Yield the inputs of every row, integers as such."""
    plain = [
        [int(v) if v.is_integer() else v for v in column.tolist()] for column in numbers.values()
    ]
    return (dict(zip(numbers, each, strict=True)) for each in zip(*plain, strict=True))


def _show(family: "Family", on: str, rows: list[Row], *, json: bool) -> None:
    if json:
        print_json("kernel", on, rows)
        return
    inputs = [key for key in rows[0] if key in family.columns]
    columns = [Column(key, key) for key in inputs] + [
        Column("dtype", "dtype", right=False),
        Column("seconds", "predicted", format_time),
        Column("low", "from", format_time),
        Column("high", "to", format_time),
        Column("model", "rests on", right=False),
    ]
    print_table(columns, rows[:_SHOWN], title=f"{family.name} on {on}")
    if len(rows) > _SHOWN:
        print(f"and {len(rows) - _SHOWN} more: use --json or -o FILE.csv")
