"""Tables and timelines as text: colours and the width of the window only on a terminal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_UNBOUNDED = 1000  # columns of a file or a pipe: nothing is cut there


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: which key of a row, under what title, shown how."""

    key: str
    title: str
    show: Callable[[Any], str] = str
    right: bool = True
    style: str = ""


def console(file: IO[str] | None = None, *, width: int | None = None) -> Console:
    """Give a place to print to; a pipe gets plain text that is never cut."""
    made = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    if width is None and not made.is_terminal:
        made.width = _UNBOUNDED
    return made


def print_table(
    columns: Sequence[Column],
    rows: Iterable[Mapping[str, Any]],
    *,
    to: Console | None = None,
    title: str = "",
) -> None:
    """Print rows under the titles of ``columns``; a key that a row lacks is left blank."""
    place = to or console()
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.right else "left", style=column.style
        )
    for row in rows:
        table.add_row(*(_cell(column, row.get(column.key)) for column in columns))
    if title:
        place.print(Text(title, style="bold"))
    print_lines(place, table)


def print_lines(place: Console, what: Any) -> None:
    """Print without the blanks that fill a line up to the width of the page."""
    if place.is_terminal:
        place.print(what)
        return
    with place.capture() as captured:
        place.print(what)
    lines = captured.get().splitlines()
    place.file.write("".join(f"{line.rstrip()}\n" for line in lines))


def _cell(column: Column, value: Any) -> Text:
    return Text("" if value is None else column.show(value))


def bar(share: float, width: int = 10) -> str:
    """Draw a share of 1 as a bar, in eighths of a character.

    >>> bar(0.5, 4), bar(1, 4), bar(0.03, 4)
    ('██  ', '████', '▏   ')
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)
