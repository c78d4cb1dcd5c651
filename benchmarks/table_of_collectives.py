"""The tables of collectives, with the columns of nccl-tests, and of their figures."""

from collections.abc import Sequence
from typing import Any

from benchmarks.rows import Row
from weft.report.text import Column, print_table
from weft.units import format_rate, format_size, format_time


def print_collective_rows(rows: Sequence[Row]) -> None:
    """Print one table for each collective and number of ranks; ratios over 1 are weft's gain."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.case["collective"], row.case["ranks"]), []).append(row)
    for (kind, ranks), members in groups.items():
        print_table(_columns(members), map(_flat, members), title=f"\n{kind}, {ranks} ranks")
    _print_versions(rows)


def print_figure_rows(rows: Sequence[Row]) -> None:
    """Print what each case must reach and what it did."""
    columns = [
        Column("figure", "figure", right=False),
        Column("collective", "collective", right=False),
        Column("ranks", "ranks"),
        Column("input_bytes", "input", format_size),
        Column("path", "path", right=False),
        Column("must", "must reach", right=False),
        Column("reached", "reached", right=False),
        Column("met", "met", right=False),
        Column("wrong", "#wrong"),
    ]
    words = {True: "yes", False: "no", None: "not measured"}
    shown = [row.case | row.more | {"met": words[row.more["met"]]} for row in rows]
    print_table(columns, shown)
    _print_versions(rows)


def _print_versions(rows: Sequence[Row]) -> None:
    for row in rows[:1]:
        print("\npeers: " + (", ".join(row.more["versions"].values()) or "none"))


def _columns(rows: Sequence[Row]) -> list[Column]:
    peers = list(rows[0].peers)
    liars = [name for name in peers if any(row.more["wrong_peers"][name] for row in rows)]
    return [
        Column("nbytes", "size", format_size),
        Column("count", "count"),
        Column("dtype", "type"),
        Column("path", "path", right=False),
        Column("seconds", "time", format_time),
        Column("algbw", "algbw", format_rate),
        Column("busbw", "busbw", format_rate),
        Column("wrong", "#wrong"),
        *(Column(f"{name}.seconds", name, format_time) for name in peers),
        *(Column(f"{name}.ratio", f"{name}/weft", "{:.2f}".format) for name in peers),
        *(Column(f"{name}.wrong", f"#wrong {name}") for name in liars),
    ]


def _flat(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {**row.case, **row.more, "seconds": row.seconds}
    for name, peer in row.peers.items():
        flat |= {f"{name}.seconds": peer.seconds, f"{name}.ratio": peer.ratio}
        flat[f"{name}.wrong"] = row.more["wrong_peers"][name]
    return flat
