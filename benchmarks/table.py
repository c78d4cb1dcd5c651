"""The table of a benchmark: one line per case, peers next to weft, then its own figures."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from benchmarks.rows import Row
from weft.report.text import Column, print_table
from weft.units import format_size, format_time

_QUIET = 0.1  # share of the cores that may be busy; less than a tenth cannot be told in a moment


def print_rows(rows: Sequence[Row]) -> None:
    """Print the rows of one benchmark; a ratio over 1 says that the peer took longer."""
    peers = _keys([row.peers for row in rows])
    more = _keys([row.more for row in rows])
    cases = _keys([row.case for row in rows])
    columns = [
        *(Column(f"case.{key}", key, show_figure(key), right=False) for key in cases),
        Column("seconds", "weft", format_time),
        Column("spread", "spread", format_time),
        *(Column(f"{name}.seconds", name, format_time) for name in peers),
        *(Column(f"{name}.ratio", f"{name}/weft", "{:.2f}".format) for name in peers),
        *(Column(f"more.{key}", key.replace("_", " "), show_figure(key)) for key in more),
    ]
    print_table(columns, [_flat(row) for row in rows])


def print_notes(rows: Sequence[Row]) -> None:
    """Print how many figures were met, how well they were predicted, and if others were busy."""
    verdicts = [row.more["met"] for row in rows if "met" in row.more]
    if verdicts:
        unknown = f", {verdicts.count(None)} not measured" if None in verdicts else ""
        print(f"\nmet {verdicts.count(True)} of {len(verdicts)}{unknown}")
    errors = [abs(row.more["predicted_error"]) for row in rows if "predicted_error" in row.more]
    if errors:
        print(f"\npredicted to within {median(errors):.1%} in the median of {len(errors)}")
    foreign = max((row.more.get("foreign", 0.0) for row in rows), default=0.0)
    if foreign > _QUIET:
        print(f"\nothers used up to {foreign:.0%} of the cores: a quiet machine gives other times")


def _flat(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {"seconds": row.seconds, "spread": row.spread}
    flat |= {f"case.{key}": value for key, value in row.case.items()}
    flat |= {f"more.{key}": value for key, value in row.more.items()}
    for name, peer in row.peers.items():
        flat |= {f"{name}.seconds": peer.seconds, f"{name}.ratio": peer.ratio}
    return flat


def _keys(mappings: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))


def show_figure(key: str) -> Callable[[Any], str]:
    """Choose how a figure is written by what its name says it is."""
    if key.endswith("bytes"):
        return format_size
    if key.endswith(("cpu", "limit", "seconds", "answer", "expected")):
        return format_time
    return _plain


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
