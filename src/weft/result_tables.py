"""Results in notebooks: ``to_pandas()`` and an HTML view for every class that states its tables.

A result derives from ``ResultTables`` and returns its tables by name, the most telling one first.
Each table is a list of rows under the keys that ``--json`` of the command line has.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

from weft.errors import UsageError
from weft.units import format_rate, format_size, format_time

Rows = Iterable[Mapping[str, Any]]
Tables = Mapping[str, Callable[[], Rows]]
_MOST = 20  # rows of an HTML view

# Units of numbers by their key: inside weft other floats are seconds.
_UNITS: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("busbw", "link"), format_rate),
    **dict.fromkeys(("share", "gain", "error"), "{:.1%}".format),
    **dict.fromkeys(("p", "joules"), "{:.3g}".format),
}


class ResultTables:
    """Base of results that are tables."""

    __slots__ = ()

    def tables(self) -> Tables:
        """Return the tables of this result by name, the most telling one first."""
        raise NotImplementedError

    def to_pandas(self, what: str = "") -> Any:
        """Return a table as a DataFrame: the first of ``tables()``, or the one of that name."""
        known = self.tables()
        what = what or next(iter(known))
        if what not in known:
            raise UsageError(f"what: unknown table {what!r}", f"Use one of {', '.join(known)}.")
        try:
            import pandas as pd
        except ImportError:
            raise UsageError("pandas is not installed", "Run pip install pandas.") from None
        return pd.DataFrame([flat(row) for row in known[what]()])

    def _repr_html_(self) -> str:
        """Return the first table and the names of the others, as notebooks show it."""
        name, *others = self.tables()
        rows = [flat(row) for row in islice(self.tables()[name](), _MOST + 1)]
        more = " ".join(f'<code>to_pandas("{escape(each)}")</code>' for each in others)
        below = f"<p>{'First rows. ' * (len(rows) > _MOST)}{f'Also {more}.' if more else ''}</p>"
        return f"<p><b>{escape(repr(self))}</b></p>{_table(rows[:_MOST])}{below}"


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalar values of a row, which fit into a table."""
    return {key: value for key, value in row.items() if not isinstance(value, dict | list | tuple)}


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    keys = dict.fromkeys(key for row in rows for key in row)
    used = [key for key in keys if any(row.get(key) not in (None, "") for row in rows)]
    head = "".join(f"<th>{escape(key.replace('_', ' '))}</th>" for key in used)
    lines = ("".join(_cell(key, row.get(key)) for key in used) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(key: str, value: Any) -> str:
    if isinstance(value, float):
        text = _UNITS.get(key, format_time)(value)
    elif key == "nbytes" and value is not None:
        text = format_size(value)
    else:
        text = "" if value is None else str(value)
    side = "right" if isinstance(value, int | float) and value is not True else "left"
    return f'<td style="text-align:{side}">{escape(text)}</td>'
