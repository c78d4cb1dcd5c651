"""Tables as text: colours and the window width apply on a terminal only.

Written without rich, whose import would take a tenth of the time of a whole command.
"""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import IO, Any

from weft.units import printable

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_UNBOUNDED = 1000  # width of a file or a pipe: nothing is wrapped there
_NARROWEST = 16  # minimum width of the last column in a narrow window
_GAP = "  "
_CODES = {"bold": "1", "italic": "3", "green": "32", "cyan": "36", "dim": "90"}
_PAINTED = re.compile(rf"(\x1b\[(?:0|{'|'.join(_CODES.values())})m)")


@dataclass(frozen=True, slots=True)
class Page:
    """A text output: its width, and whether it supports colours."""

    file: IO[str]
    width: int
    colours: bool = False

    def write(self, line: str) -> None:
        """Write one line without trailing blanks, and without control characters of names."""
        parts = _PAINTED.split(line.rstrip()) if self.colours else [line.rstrip()]
        own = [part if n % 2 else printable(part) for n, part in enumerate(parts)]
        self.file.write("".join(own) + "\n")

    def write_wrapped(self, text: str, indent: str = "") -> None:
        """Write text in lines of at most the width; lines after the first are indented."""
        for line in textwrap.wrap(text, self.width, subsequent_indent=indent) or [""]:
            self.write(line)

    def paint(self, text: str, style: str) -> str:
        """Return text in a style, if the output supports it, without control characters."""
        text, code = printable(text), _CODES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if code and self.colours and text.strip() else text


def page(file: IO[str] | None = None, *, width: int | None = None) -> Page:
    """Return the output of a file (default: stdout); anything but a terminal gets plain lines."""
    out = sys.stdout if file is None else file
    terminal = out.isatty()
    if width is None:
        width = shutil.get_terminal_size().columns if terminal else _UNBOUNDED
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return Page(out, width, terminal and not plain)


def print_wrapped(text: str, indent: str = "") -> None:
    """Print a paragraph in the width of the window; lines after the first are indented."""
    page().write_wrapped(text, indent)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the key of a row, its title, and its format."""

    key: str
    title: str
    show: Callable[[Any], str] = str
    right: bool = True
    style: str = ""
    spare: bool = False  # omitted in a window that is too narrow, the last ones first

    def cell(self, row: Mapping[str, Any]) -> str:
        """Format one value on one line; a missing key is blank."""
        value = row.get(self.key)
        return "" if value is None else printable(" ".join(self.show(value).splitlines()))


def print_table(
    columns: Sequence[Column],
    rows: Iterable[Mapping[str, Any]],
    *,
    to: Page | None = None,
    title: str = "",
) -> None:
    """Print rows under the titles of ``columns``, in the width of the page.

    Columns that may be spared are omitted until the others fit, and titles of several words break;
    then text is wrapped: the last column, and others that are aligned to the left.
    """
    place, rows = to or page(), list(rows)
    columns = _fitting(place, columns, rows)
    cells = [[column.cell(row) for column in columns] for row in rows]
    titles = [column.title for column in columns]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    if title:
        place.write_wrapped(place.paint(title, "bold"))
    if _total(widths) > place.width:
        cut = [max([len(w) for w in t.split()], default=0) for t in titles]
        cut = [max(map(len, column)) for column in zip([" " * n for n in cut], *cells, strict=True)]
        widths = [*cut[:-1], widths[-1]]
    texts = [n for n, column in enumerate(columns) if column is columns[-1] or not column.right]
    while _total(widths) > place.width and max(widths[n] for n in texts) > _NARROWEST:
        widths[max(texts, key=lambda n: widths[n])] -= 1
    if any(titles):
        bold = [Column("", "", right=column.right, style="bold") for column in columns]
        _write_row(place, bold, titles, widths)
    for row in cells:
        _write_row(place, columns, row, widths)


def _fitting(
    place: Page, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]
) -> list[Column]:
    """Return the columns without spare ones that do not fit next to the narrowest last one."""
    kept = list(columns)

    def least(column: Column) -> int:
        words = [len(word) for word in column.title.split()]
        cells = [len(column.cell(row)) for row in rows]
        wraps = column is columns[-1] or not column.right
        return max(words + ([min(n, _NARROWEST) for n in cells] if wraps else cells), default=0)

    spare = [column for column in columns if column.spare]
    while spare and _total([least(column) for column in kept]) > place.width:
        kept.remove(spare.pop())
    return kept


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _write_row(
    place: Page, columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]
) -> None:
    wrapped = [
        [line.strip() for line in textwrap.wrap(cell, width, drop_whitespace=False)]
        if len(cell) > width
        else [cell]
        for cell, width in zip(cells, widths, strict=True)
    ]
    for lines in zip_longest(*wrapped, fillvalue=""):
        fitted = [
            place.paint(cell.rjust(width) if column.right else cell.ljust(width), column.style)
            for column, cell, width in zip(columns, lines, widths, strict=True)
        ]
        place.write(_GAP.join(fitted))


def sentence(text: str) -> str:
    """Return text as a sentence: a capital first letter, unless the first word is code, and a stop.

    >>> sentence("larger buckets"), sentence("torch.compile fuses them")
    ('Larger buckets.', 'torch.compile fuses them.')
    """
    first = text.partition(" ")[0]
    is_code = any(sign in first for sign in "._=/")
    begun = text if is_code else text[:1].upper() + text[1:]
    return begun + ("" if text.endswith((".", "`")) else ".")


def bar(share: float, width: int = 10) -> str:
    """Draw a fraction as a bar, in eighths of a character.

    >>> bar(0.5, 4), bar(1, 4), bar(0.03, 4)
    ('██  ', '████', '▏   ')
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)
