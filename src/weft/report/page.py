"""A page as one self-contained HTML file: offline, responsive, dark mode, screen readers.

Every plot of a page has a table. External text is escaped where it is written; in addition, the
page's content security policy allows no script but weft's.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from weft.report.results import weft_version
from weft.report.text import Column

TEMPLATES = Path(__file__).parent / "templates"
_STATES: dict[Any, str] = {True: ' class="yes"', False: ' class="no"'}
_LONG = 40  # characters from which on a cell may be wrapped
_SCRIPTS = ("spans.js", "draw.js", "control.js")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence, drawings (HTML) and rows; ``mark`` is the key of a yes/no column.

    ``fold`` puts the table below the drawings in a collapsed element, because it repeats their
    numbers. ``unfolded`` is for tables with additional information.
    """

    title: str
    text: str
    columns: Sequence[Column] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    mark: str = ""
    drawings: Sequence[str] = ()
    fold: str = ""
    unfolded: bool = False

    @property
    def anchor(self) -> str:
        """The anchor by which the page links to it."""
        return "s-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in self.title.lower())

    def html(self) -> str:
        """Return the HTML of the section."""
        drawings = "\n".join(self.drawings)
        rows = table(self.columns, self.rows, self.title, mark=self.mark) if self.columns else ""
        if self.fold and rows:
            state = " open" if self.unfolded else ""
            summary = f"<summary>{escape(self.fold)}</summary>"
            rows = f"<details{state}>{summary}\n{rows}</details>\n"
        parts = (drawings, rows) if self.fold else (rows, drawings)
        text = f"<p>{escape(self.text)}</p>\n" if self.text else ""
        return (
            f'<section aria-labelledby="{self.anchor}">\n<h2 id="{self.anchor}">'
            f"{escape(self.title)}</h2>\n{text}{parts[0]}\n{parts[1]}\n</section>\n"
        )


def table(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], name: str, *, mark: str = ""
) -> str:
    """Return a table that scrolls by itself in narrow windows."""
    titles = "".join(_cell("th", column, column.title, ' scope="col"') for column in columns)
    lines = "\n".join(_row(columns, row, mark) for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}: table">'
        f"<table>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>\n"
    )


def _row(columns: Sequence[Column], row: Mapping[str, Any], mark: str) -> str:
    state = _STATES.get(row.get(mark), "")
    first, *rest = columns
    cells = _cell("th", first, first.cell(row), ' scope="row"')
    cells += "".join(_cell("td", column, column.cell(row)) for column in rest)
    return f"<tr{state}>{cells}</tr>"


def _cell(tag: str, column: Column, text: str, more: str = "") -> str:
    side = ' class="right"' if column.right else ' class="long"' if len(text) > _LONG else ""
    return f"<{tag}{side}{more}>{escape(text)}</{tag}>"


def html_page(title: str, sections: Sequence[Section], *, lead: str = "", top: str = "") -> str:
    """Return a whole page; ``lead`` is its first sentence, ``top`` HTML above all sections."""
    body = "\n".join(section.html() for section in sections)
    script = _script() if "data-timeline=" in top + body else ""
    text = Template(_read("page.html")).substitute(
        title=escape(title),
        policy=_policy(script),
        style=_read("page.css"),
        lead=f'<p class="lead">{escape(lead)}</p>' if lead else "",
        top=top,
        links=_links(sections) if len(sections) > 2 else "",
        body=body,
        version=escape(weft_version()),
        script=f"<script>{script}</script>" if script else "",
    )
    return text.encode("utf-8", "replace").decode()  # unpaired surrogates cannot be encoded


def tiles(values: Sequence[tuple[str, str, str]]) -> str:
    """Return the most important numbers: label, value, and a note."""
    parts = (
        f'<div><dt>{escape(name)}</dt><dd><span class="value">{escape(value)}</span>'
        f'<br><span class="note">{escape(note)}</span></dd></div>'
        for name, value, note in values
    )
    return f'<dl class="tiles">{"".join(parts)}</dl>\n'


def words(meanings: Mapping[str, str]) -> str:
    """Return the definitions of the terms of a page."""
    parts = (f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in meanings.items())
    return f'<dl class="words">{"".join(parts)}</dl>\n'


def _links(sections: Sequence[Section]) -> str:
    items = "".join(
        f'<li><a href="#{each.anchor}">{escape(each.title)}</a></li>' for each in sections
    )
    return f'<nav aria-label="Sections"><ul>{items}</ul></nav>'


@cache
def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    return '"use strict";\n(() => {\n' + "\n".join(map(_read, _SCRIPTS)) + "})();\n"


def _policy(script: str) -> str:
    """Return a content security policy that forbids all requests and all other scripts."""
    allowed = "'none'"
    if script:
        digest = hashlib.sha256(script.encode()).digest()
        allowed = f"'sha256-{base64.b64encode(digest).decode()}'"
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"
