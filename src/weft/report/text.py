"""Tables as text: colours and the window width apply on a terminal only.

Written without rich, whose import would take a tenth of the time of a whole command.
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_UNBOUNDED = 1000  # width of a file or a pipe: nothing is wrapped there
_NARROWEST = 16  # minimum width of the last column in a narrow window
_GAP = "  "
_CODES = {"bold": "1", "italic": "3", "green": "32", "cyan": "36", "dim": "90"}


@dataclass(frozen=True, slots=True)
class Page:
    """A text output: its width, and whether it supports colours."""

    file: IO[str]
    width: int
    colours: bool = False

    def write(self, line: str) -> None:
        """Write one line without trailing blanks."""
        self.file.write(line.rstrip() + "\n")

    def write_wrapped(self, text: str, indent: str = "") -> None:
        """Write text in lines of at most the width; lines after the first are indented."""
        for line in textwrap.wrap(text, self.width, subsequent_indent=indent) or [""]:
            self.write(line)

    def paint(self, text: str, style: str) -> str:
        """Return text in a style, if the output supports it."""
        code = _CODES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if code and self.colours and text.strip() else text


def page(file: IO[str] | None = None, *, width: int | None = None) -> Page:
    """Return the output of a file (default: stdout); anything but a terminal gets plain lines."""
    out = sys.stdout if file is None else file
    terminal = out.isatty()
    if width is None:
        width = shutil.get_terminal_size().columns if terminal else _UNBOUNDED
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return Page(out, width, terminal and not plain)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the key of a row, its title, and its format."""

    key: str
    title: str
    show: Callable[[Any], str] = str
    right: bool = True
    style: str = ""

    def cell(self, row: Mapping[str, Any]) -> str:
        """Format one value on one line; a missing key is blank."""
        value = row.get(self.key)
        return "" if value is None else " ".join(self.show(value).splitlines())


def print_table(
    columns: Sequence[Column],
    rows: Iterable[Mapping[str, Any]],
    *,
    to: Page | None = None,
    title: str = "",
) -> None:
    """Print rows under the titles of ``columns``; a too wide last column is wrapped."""
    place = to or page()
    cells = [[column.cell(row) for column in columns] for row in rows]
    titles = [column.title for column in columns]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    room = place.width - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1)
    widths[-1] = max(1, min(widths[-1], max(room, _NARROWEST)))
    if title:
        place.write(place.paint(title, "bold"))
    if any(titles):
        bold = [Column("", "", right=column.right, style="bold") for column in columns]
        _write_row(place, bold, titles, widths)
    for row in cells:
        _write_row(place, columns, row, widths)


def _write_row(
    place: Page, columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]
) -> None:
    first, *rest = textwrap.wrap(cells[-1], widths[-1], drop_whitespace=False) or [""]
    fitted = [
        place.paint(cell.rjust(width) if column.right else cell.ljust(width), column.style)
        for column, cell, width in zip(columns, [*cells[:-1], first], widths, strict=True)
    ]
    place.write(_GAP.join(fitted))
    indent = " " * (sum(widths[:-1]) + len(_GAP) * (len(widths) - 1))
    for line in rest:
        place.write(indent + place.paint(line.strip(), columns[-1].style))


def bar(share: float, width: int = 10) -> str:
    """Draw a fraction as a bar, in eighths of a character.

    >>> bar(0.5, 4), bar(1, 4), bar(0.03, 4)
    ('██  ', '████', '▏   ')
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)
