"""The tables of collectives: predicted, or measured and predicted."""

from collections.abc import Iterator, Sequence
from typing import Any

from weft.hardware import Platform
from weft.report.text import Column, bar, print_table
from weft.units import format_rate, format_size, format_time

_ENERGY = (Column("joules", "joules", "{:.3g}".format), Column("watts", "watts", "{:.0f}".format))


def print_collectives(platform: Platform, rows: Sequence[dict[str, Any]]) -> None:
    """Print the results, the answer first."""
    if not rows:
        return
    if any(row["basis"] == "measured" for row in rows):
        _print_measured(platform, rows)
    else:
        _print_predicted(platform, rows)


def _print_predicted(platform: Platform, rows: Sequence[dict[str, Any]]) -> None:
    first = rows[0]
    best = max((row["busbw"] or 0.0 for row in rows), default=0.0) or 1.0
    shown = [_readable(row) | {"bar": bar((row["busbw"] or 0.0) / best)} for row in rows]
    columns = [
        Column("nbytes", "size", format_size),
        Column("algorithm", "algorithm", right=False, style="bold"),
        Column("seconds", "time", format_time),
        Column("algbw", "algbw", format_rate),
        Column("busbw", "busbw", format_rate),
        *(_ENERGY if "joules" in first else ()),
        Column("bar", "", right=False, style="cyan"),
    ]
    title = f"{first['collective']}, {first['ranks']} ranks on {platform.name}, predicted"
    print_table(columns, shown, title=title)
    for note in _notes(rows):
        print(note)


def _notes(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield notes about rows once, with the sizes they apply to."""
    noted: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for note in filter(None, row.get("note", "").split("; ")):
            noted.setdefault((row["algorithm"], note), []).append(format_size(row["nbytes"]))
    for (algorithm, note), sizes in noted.items():
        every = len(sizes) == sum(row["algorithm"] == algorithm for row in rows)
        yield f"{algorithm}{'' if every else ' of ' + ', '.join(sizes)}: {note}"


def _print_measured(platform: Platform, rows: Sequence[dict[str, Any]]) -> None:
    """Print the two rows of a case, measured and predicted, in one line."""
    measured = [row for row in rows if row["basis"] == "measured"]
    predicted = [row["seconds"] for row in rows if row["basis"] == "predicted"]
    first = rows[0]
    shown = [
        _readable(row) | {"predicted": then, "ratio": then / row["seconds"]}
        for row, then in zip(measured, predicted, strict=True)
    ]
    columns = [
        Column("nbytes", "size", format_size),
        Column("algorithm", "algorithm", right=False, style="bold"),
        Column("seconds", "measured", format_time),
        Column("predicted", "predicted", format_time),
        Column("ratio", "pred/meas", "{:.2f}".format),
        Column("algbw", "algbw", format_rate),
        Column("busbw", "busbw", format_rate),
        Column("wrong", "#wrong"),
    ]
    title = (
        f"{first['collective']}, {first['ranks']} ranks here, measured and predicted "
        f"on {platform.name}"
    )
    print_table(columns, shown, title=title)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    chosen = row.get("chosen")
    return row | ({"algorithm": f"{row['algorithm']}: {chosen}"} if chosen else {})
