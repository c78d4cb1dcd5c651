"""Pages of collectives and of GEMM/collective pairs: bandwidth, times, timelines."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from weft.report.bars import ChartBar, bar_chart
from weft.report.interactive_timeline import timeline_section
from weft.report.page import Section, html_page
from weft.report.picture import picture_of
from weft.report.svg import Axis, Chart, Series, log_ticks
from weft.report.text import Column
from weft.timeline import Timeline
from weft.units import format_percent, format_rate, format_size, format_time

Rows = Sequence[Mapping[str, Any]]


def collective_page(platform: str, rows: Rows, timelines: Sequence[Timeline]) -> str:
    """Return the page of a collective by each algorithm, with the timeline of the last one."""
    kinds = ", ".join(dict.fromkeys(str(row["collective"]) for row in rows))
    ranks = max((int(row["ranks"]) for row in rows), default=0)
    best = max(rows, key=lambda row: row["busbw"] or 0.0, default=None)
    lead = f"{ranks} ranks on {platform}."
    if best is not None and best["busbw"]:
        lead += (
            f" Best bus bandwidth: {format_rate(best['busbw'])} by {_named(best)} "
            f"at {format_size(best['nbytes'])} ({best['basis']})."
        )
    sections = [_by_algorithm(rows), *_timelines(timelines, ranks)]
    return html_page(f"{kinds} on {platform}", sections, lead=lead)


def _by_algorithm(rows: Rows) -> Section:
    """Return bandwidth by size, or times if there is only one size."""
    columns = [
        Column("nbytes", "size", format_size),
        Column("name", "algorithm", right=False),
        Column("seconds", "time", format_time),
        Column("algbw", "algbw", format_rate),
        Column("busbw", "busbw", format_rate),
        Column("basis", "basis", right=False),
        Column("note", "note", right=False),
    ]
    drawn = [row for row in rows if row["busbw"] and row["nbytes"]]
    if len({row["nbytes"] for row in drawn}) > 1:
        title, drawing = "Bus bandwidth by size", _curves(drawn)
        text = "How fast data moves by each algorithm, as nccl-tests counts it: higher is better."
    else:
        title, drawing = "Time by algorithm", _bars(rows)
        text = "How long it takes by each algorithm: shorter is better."
    shown = [{**row, "name": _named(row)} for row in rows]
    return Section(title, text, columns, shown, drawings=[drawing], fold="All numbers as a table")


def _bars(rows: Rows) -> str:
    bars = [
        ChartBar(_named(row), {str(row["basis"]): row["seconds"]}, format_time(row["seconds"]))
        for row in rows
    ]
    kinds = {"predicted": "computation", "measured": "overlapped"}
    return bar_chart(bars, kinds, label="Time by algorithm")


def _curves(rows: Rows) -> str:
    """Draw a line per algorithm over the sizes."""
    sizes = [int(row["nbytes"]) for row in rows]
    x = Axis("size", log_ticks(sizes, base=2, most=7), format_size, log=True)
    y = Axis("", log_ticks((row["busbw"] for row in rows), most=6), format_rate, log=True)
    return Chart("Bus bandwidth", x, y, list(_series(rows))).figure()


def _series(rows: Rows) -> Iterator[Series]:
    def key(row: Mapping[str, Any]) -> tuple[str, str]:
        return str(row["algorithm"]), str(row["basis"])

    algorithms = list(dict.fromkeys(str(row["algorithm"]) for row in rows))
    several = len({row["basis"] for row in rows}) > 1
    for (name, basis), group in groupby(sorted(rows, key=key), key=key):
        points = sorted((int(row["nbytes"]), float(row["busbw"])) for row in group)
        yield Series(
            f"{name}, {basis}" if several else name,
            [x for x, _ in points],
            [y for _, y in points],
            "dashes" if several and basis == "predicted" else "line",
            algorithms.index(name),
        )


def _timelines(timelines: Sequence[Timeline], num_ranks: int) -> Iterator[Section]:
    for number, timeline in enumerate(timelines):
        title = f"Timeline, {timeline.basis}"
        text = f"What every queue does in {timeline.schedule}: {format_time(timeline.makespan)}."
        if len(np.unique(timeline.rank)) < num_ranks:
            text += " Ranks that do the same are shown once."
        yield timeline_section(picture_of(timeline), title, text, number=number)


def _named(row: Mapping[str, Any]) -> str:
    chosen = row.get("chosen")
    return f"{row['algorithm']}: {chosen}" if chosen else str(row["algorithm"])


def pairs_page(platform: str, rows: Rows) -> str:
    """Return the page of overlapped GEMM/collective pairs, by strategy."""
    best = max(rows, key=lambda row: float(row["speedup"]), default=None)
    lead = f"A GEMM overlapped with a collective on {platform}, predicted."
    if best is not None:
        lead += f" Best: {best['speedup']:.2f}x by {best['strategy']} in {best['scenario']}."
    pairs = [list(group) for _, group in groupby(rows, key=lambda row: row["scenario"])]
    return html_page(
        "Computation overlapped with communication", [_pair(pair) for pair in pairs], lead=lead
    )


def _pair(rows: Rows) -> Section:
    first = rows[0]
    text = (
        f"{first['gemm']} with {first['collective']} of {format_size(first['nbytes'])}: alone "
        f"{format_time(first['t_compute'])} and {format_time(first['t_comm'])}. The line marks "
        f"the ideal, {format_time(first['ideal'])}: the longer of the two."
    )
    bars = [
        ChartBar(
            row["strategy"],
            {"time": row["seconds"]},
            f"{format_percent(row['percent_of_ideal'])} of ideal",
        )
        for row in rows
    ]
    columns = [
        Column("strategy", "strategy", right=False),
        Column("units", "masked"),
        Column("seconds", "time", format_time),
        Column("speedup", "speedup", "{:.2f}x".format),
        Column("percent_of_ideal", "of ideal", format_percent),
        Column("why", "a runtime should use it because", right=False),
    ]
    label = f"Time of {first['scenario']} by strategy"
    drawing = bar_chart(bars, {"time": "computation"}, label=label, line=first["ideal"])
    name = f"{first['scenario']}: {first['class']}"
    return Section(name, text, columns, rows, drawings=[drawing], fold="The numbers as a table")
