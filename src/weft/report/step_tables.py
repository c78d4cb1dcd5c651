"""A predicted step as tables: its duration, breakdown, critical path and uncertainties."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weft.report.names import short_name
from weft.report.page import Section, html_page
from weft.report.text import Column, bar, page, print_table
from weft.units import format_count, format_size, format_time

if TYPE_CHECKING:
    from weft.planner.predict import Prediction

_ISSUE = "issue "
_MOST_SLOWED, _LITTLE = 6, 0.001  # rows, and the smallest fraction of the step that is shown
_MEANING = {
    "compute": "kernels run",
    "exposed": "communication not overlapped",
    "waiting": "other ranks are late",
    "host": "the device waits for its host",
    "idle": "none of these",
}


def print_step(prediction: "Prediction") -> None:
    """Print a prediction, the answer first."""
    place = page()
    place.write(headline(prediction))
    for section in sections(prediction):
        place.write("")
        print_table(section.columns, section.rows, to=place, title=section.title)


def headline(prediction: "Prediction") -> str:
    """Return the duration of the step, in one line."""
    row, parts = prediction, prediction.breakdown
    hidden = row.communication - parts["exposed"]
    ranks = row.workload.num_ranks
    where = "a rank" if row.workload.source == "trace" else format_count(ranks, "rank")
    return (
        f"{row.workload.name} on {where} of {row.platform.name}: "
        f"{format_time(row.seconds)} a step, predicted "
        f"({format_time(row.low)} to {format_time(row.high)}); communication "
        f"{format_time(row.communication)}, {format_time(max(0.0, hidden))} of it hidden"
    )


def step_page(prediction: "Prediction") -> str:
    """Return the page of a prediction."""
    title = f"{prediction.workload.name} on {prediction.platform.name}"
    first, *rest = sections(prediction)
    opening = Section(first.title, headline(prediction), first.columns, first.rows)
    return html_page(title, [opening, *rest])


def _shown(name: str) -> str:
    """Shorten the name of a kernel, also if the host issues it."""
    kernel = name.removeprefix(_ISSUE)
    return f"{_ISSUE if kernel != name else ''}{short_name(kernel)}"


def sections(prediction: "Prediction") -> list[Section]:
    """Return the tables of a prediction."""
    return list(_sections(prediction))


def _sections(prediction: "Prediction") -> Iterator[Section]:
    seconds = prediction.seconds
    parts = [
        _share(name, value, seconds) | {"meaning": _MEANING[name]}
        for name, value in prediction.breakdown.items()
    ]
    yield Section("where the step goes", "", [*_SHARES, _text("meaning")], parts)
    families = [_share(name, value, seconds) for name, value in prediction.families.items()]
    yield Section("kernels by family", "", _SHARES, families)
    slowed = [
        _share(each.name, each.seconds, seconds) | each.as_row()
        for each in prediction.contention[:_MOST_SLOWED]
        if each.seconds > _LITTLE * seconds
    ]
    if slowed:
        columns = [*_SHARES[:3], _TIMES, _NEXT_TO, Column("resource", "both want", right=False)]
        yield Section("slowed by what runs at the same time", "", columns, slowed)
    path = [_share(_shown(name), value, seconds) for name, value in prediction.critical_path()]
    if path:
        yield Section("on the critical path", "", _SHARES, path)
    memory = prediction.row()["memory"]
    if memory is not None:
        has = prediction.platform.require_device().memory_bytes
        rows = [{"name": k, "nbytes": v} for k, v in memory.items() if v]
        columns = [_text("name"), Column("nbytes", "a rank", format_size)]
        yield Section(f"memory, of {format_size(has)}", "", columns, rows)
    if prediction.workload.unsupported:
        known = [
            {"name": u.name, "count": u.count, "nbytes": u.nbytes, "why": u.why}
            for u in prediction.workload.unsupported
        ]
        columns = [
            _text("name"),
            Column("count", "times"),
            Column("nbytes", "moved", format_size),
            _text("why"),
        ]
        yield Section("priced as memory traffic", "", columns, known)


def _text(key: str) -> Column:
    return Column(key, "", right=False)


_TIMES = Column("count", "times")
_NEXT_TO = Column("next_to", "next to", right=False)
_SHARES = [
    Column("name", "", right=False, style="bold"),
    Column("seconds", "time", format_time),
    Column("share", "share", "{:.1%}".format),
    Column("bar", "", right=False, style="cyan"),
]


def _share(name: str, value: float, whole: float) -> dict[str, Any]:
    share = value / whole if whole else 0.0
    return {"name": name, "seconds": value, "share": share, "bar": bar(share)}
