"""The collectives of analyzed traces: which are exposed, and how fast their bytes move."""

from collections.abc import Iterator, Sequence
from typing import Any

from weft.report.bars import ChartBar, bar_chart
from weft.report.page import Section
from weft.report.svg import Axis, Chart, Series, Style, log_ticks
from weft.report.text import Column
from weft.report.traced import rank_name, use_name
from weft.trace.analysis.analysis_result import CollectiveUse, RankAnalysis
from weft.units import format_rate, format_size, format_time

_MOST = 14
_STYLE = {
    "exposed": "communication",
    "hidden behind other work": "overlapped",
}


def collectives_section(ranks: Sequence[RankAnalysis]) -> Section | None:
    """Return collectives summed by kind and size over ranks and steps, the most exposed first."""
    groups: dict[str, list[CollectiveUse]] = {}
    for rank in ranks:
        for use in rank.collectives:
            groups.setdefault(use_name(use), []).append(use)
    if not groups:
        return None
    rows = sorted((_row(name, uses) for name, uses in groups.items()), key=lambda r: -r["exposed"])
    bars = [
        ChartBar(
            row["name"],
            {"exposed": row["exposed"], "hidden behind other work": row["hidden"]},
            f"{format_time(row['exposed'])} exposed{_waits(row)}",
        )
        for row in rows[:_MOST]
    ]
    columns = [
        Column("name", "collective", right=False),
        Column("count", "times"),
        Column("seconds", "in all", format_time),
        Column("exposed", "exposed", format_time),
        Column("waiting", "waiting", format_time),
        Column("moving", "moving", format_time),
        Column("basis", "waiting and moving", right=False),
    ]
    text = (
        "Time of collective kernels by what they do and their size, summed over ranks and steps. "
        "Waiting is the share in which a rank stood in the kernel before the last one came."
    )
    more = f" The {_MOST} most exposed of {len(rows)} are drawn." if len(rows) > _MOST else ""
    return Section(
        "Exposed communication by collective",
        text + more,
        columns,
        rows,
        drawings=[bar_chart(bars, _STYLE, label="Exposed and hidden time of every collective")],
        fold="All collectives as a table",
    )


def _row(name: str, uses: Sequence[CollectiveUse]) -> dict[str, Any]:
    known = all(use.waiting is not None for use in uses)
    seconds = sum(use.seconds for use in uses)
    exposed = sum(use.exposed for use in uses)
    return {
        "name": name,
        "count": len(uses),
        "seconds": seconds,
        "exposed": exposed,
        "hidden": max(seconds - exposed, 0.0),
        "waiting": sum(use.waiting or 0.0 for use in uses) if known else None,
        "moving": sum(use.moving or 0.0 for use in uses) if known else None,
        "basis": ", ".join(sorted({use.basis for use in uses})),
    }


def _waits(row: dict[str, Any]) -> str:
    if row["waiting"] is None or not row["seconds"]:
        return ""
    return f", {100 * row['waiting'] / row['seconds']:.0f} % waiting"


def bandwidth_section(ranks: Sequence[RankAnalysis]) -> Section | None:
    """Return the bandwidth reached once all ranks had arrived, and the predicted one."""
    found = list(_points(ranks))
    if not found:
        return None
    rows = sorted(found, key=lambda row: (row["kind"], row["nbytes"]))
    columns = [
        Column("rank", "rank", right=False),
        Column("name", "collective", right=False),
        Column("nbytes", "size", format_size),
        Column("busbw", "bus bandwidth", format_rate),
        Column("link", "predicted", format_rate),
        Column("share", "reached", "{:.0%}".format),
        Column("basis", "basis", right=False),
    ]
    text = "A dot is one collective; a dashed line what is predicted for its size on these links."
    if all(row["basis"] != "measured" for row in found):
        text += (
            " With one rank's trace the moving time is itself estimated from the link, so dots lie "
            "on the line: record all ranks to see more."
        )
    return Section(
        "Bandwidth by message size",
        text,
        columns,
        rows,
        drawings=[_chart(rows)],
        fold="Every collective as a table",
    )


def _points(ranks: Sequence[RankAnalysis]) -> Iterator[dict[str, Any]]:
    for rank in ranks:
        for use in rank.collectives:
            if use.busbw and use.nbytes:
                yield {
                    "rank": rank_name(rank),
                    "kind": use.kind,
                    "name": use_name(use),
                    "nbytes": use.nbytes,
                    "busbw": use.busbw,
                    "link": use.link,
                    "share": use.busbw / use.link if use.link else None,
                    "basis": use.basis,
                }


def _chart(rows: Sequence[dict[str, Any]]) -> str:
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    series = []
    for number, kind in enumerate(kinds):
        mine = [row for row in rows if row["kind"] == kind]
        dots = sorted({(r["nbytes"], r["busbw"], _hover_text(r)) for r in mine})
        xs, ys, labels = zip(*dots, strict=True)
        series.append(Series(kind, xs, ys, "dots", number, labels))
        limit = sorted({(r["nbytes"], r["link"]) for r in mine if r["link"]})
        if limit:
            lines, rates = zip(*limit, strict=True)
            alone = len(limit) == 1  # a line of one point would be invisible
            style: Style = "dots" if alone else "dashes"
            colour = number + len(kinds) if alone else number
            series.append(Series(f"{kind}: link", lines, rates, style, colour))
    both = [value for r in rows for value in (r["busbw"], r["link"]) if value]
    x = Axis("size", log_ticks((r["nbytes"] for r in rows), base=2, most=7), format_size, log=True)
    y = Axis("", log_ticks(both, most=7), format_rate, log=True)
    return Chart("Bus bandwidth while bytes move", x, y, series).figure()


def _hover_text(row: dict[str, Any]) -> str:
    link = f"; predicted {format_rate(row['link'])}" if row["link"] else ""
    return f"{row['rank']}, {row['name']}: {format_rate(row['busbw'])}{link}"
