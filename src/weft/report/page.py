"""A page of tables as one HTML file: no scripts, nothing to load, readable offline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from weft.report.text import Column

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 84em; padding: 0 1em; }
table { border-collapse: collapse; margin: 0.5em 0 2em; }
th, td { padding: 0.2em 0.7em; border-bottom: 1px solid #8884; text-align: left; }
th { border-bottom: 2px solid #888; } td.right, th.right { text-align: right; }
tr.yes td:first-child { border-left: 4px solid #2a7; }
tr.no td:first-child { border-left: 4px solid #c33; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } }
"""
_STATES: dict[Any, str] = {True: ' class="yes"', False: ' class="no"'}


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence, rows and drawings (SVG); ``mark`` is a key that says yes or no."""

    title: str
    text: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    mark: str = ""
    drawings: Sequence[str] = ()

    def html(self) -> str:
        """Write the heading and the table under it."""
        titles = "".join(_cell("th", column, column.title) for column in self.columns)
        rows = "\n".join(self._row(row) for row in self.rows)
        return (
            f"<h2>{escape(self.title)}</h2>\n<p>{escape(self.text)}</p>\n"
            f"<table>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>\n"
            + "\n".join(self.drawings)
        )

    def _row(self, row: Mapping[str, Any]) -> str:
        state = _STATES.get(row.get(self.mark), "")
        cells = "".join(_cell("td", column, column.cell(row)) for column in self.columns)
        return f"<tr{state}>{cells}</tr>"


def html_page(title: str, sections: Sequence[Section]) -> str:
    """Write a whole page."""
    body = "\n".join(section.html() for section in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _cell(tag: str, column: Column, text: str) -> str:
    side = ' class="right"' if column.right else ""
    return f"<{tag}{side}>{escape(text)}</{tag}>"
