"""A predicted step as tables: its duration, breakdown, critical path and uncertainties."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from weft.planner.predict import Prediction
from weft.report.page import Section, html_page
from weft.report.text import Column, bar, page, print_table, sentence
from weft.timeline.kernel_names import short_name
from weft.units import format_count, format_size, format_time

_ISSUE = "issue "
_WIDE = 100  # columns of a list of settings in a pipe
_MOST_SLOWED, _LITTLE = 6, 0.001  # rows, and the smallest fraction of the step that is shown
_MEANING = {
    "compute": "kernels run",
    "exposed": "communication not overlapped",
    "waiting": "other ranks are late",
    "host": "the device waits for its host",
    "idle": "none of these",
}


def print_step(prediction: "Prediction", row: Mapping[str, Any] | None = None) -> None:
    """Print a prediction, the answer first; ``row`` may have more than the prediction's own."""
    place, row = page(), row or prediction.row()
    place.write_wrapped(headline(prediction))
    narrow = replace(place, width=min(place.width, _WIDE))
    for line in _rates(prediction, row):
        place.write_wrapped(line, "  ")
    for line in _settings(row):
        narrow.write_wrapped(line, "  ")
    for line in row.get("notes", ()):
        place.write_wrapped(line, "  ")
    for section in sections(prediction, row):
        place.write("")
        print_table(section.columns, section.rows, to=place, title=section.title)


def headline(prediction: "Prediction") -> str:
    """Return the duration of the step, in one line."""
    row, parts = prediction, prediction.breakdown
    hidden = row.communication - parts["exposed"]
    ranks = row.graph.num_ranks
    where = "a rank" if row.graph.source == "trace" else format_count(ranks, "rank")
    return (
        f"{row.graph.name} on {where} of {row.platform.name}: "
        f"{format_time(row.seconds)} a step, predicted "
        f"({format_time(row.low)} to {format_time(row.high)}); communication "
        f"{format_time(row.communication)}, {format_time(max(0.0, hidden))} of it hidden"
    )


def _rates(prediction: "Prediction", row: Mapping[str, Any]) -> Iterator[str]:
    """Print what the job does in a second."""
    rates = row.get("throughput", {})
    rank = "rank" if prediction.platform.require_device().is_core else "GPU"
    if "mfu" in rates:
        tera = rates["flops_per_second_per_rank"] / 1e12
        yield (
            f"{rates['tokens_per_second_per_rank']:,.0f} tokens/s/{rank}, "
            f"{f'{tera:,.0f}' if tera >= 10 else f'{tera:.2g}'} TFLOP/s/{rank}, "
            f"MFU {rates['mfu']:.1%}, {rates['samples_per_second']:,.2f} samples/s, predicted"
        )
    elif "samples_per_second" in rates:
        yield f"{rates['samples_per_second']:,.0f} samples/s, predicted"
    for kind in ("tokens", "samples"):
        if (cost := rates.get(f"cost_per_million_{kind}")) is not None:
            yield f"{cost:,.3g} for a million {kind} at the given price of a GPU-hour, predicted"


def _settings(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings in force."""
    if settings := row.get("settings"):
        words = (f"{key}={_setting(value)}" for key, value in settings.items())
        yield f"settings: {' '.join(words)}"


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def step_page(prediction: "Prediction", row: Mapping[str, Any] | None = None) -> str:
    """Return the page of a prediction."""
    row = row or prediction.row()
    title = f"{prediction.graph.name} on {prediction.platform.name}"
    first, *rest = sections(prediction, row)
    told = (*_rates(prediction, row), *_settings(row), *row.get("notes", ()))
    opening = Section(first.title, " ".join(map(sentence, told)), first.columns, first.rows)
    return html_page(title, [opening, *rest], lead=sentence(headline(prediction)))


def _shown(name: str) -> str:
    """Shorten the name of a kernel, also if the host issues it."""
    kernel = name.removeprefix(_ISSUE)
    return f"{_ISSUE if kernel != name else ''}{short_name(kernel)}"


def sections(prediction: "Prediction", row: Mapping[str, Any] | None = None) -> list[Section]:
    """Return the tables of a prediction."""
    return list(_sections(prediction, row or prediction.row()))


def _sections(prediction: "Prediction", row: Mapping[str, Any]) -> Iterator[Section]:
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
    memory = row["memory"]
    if memory is not None:
        has = prediction.platform.require_device().memory_bytes
        rows = [{"name": k, "nbytes": v} for k, v in memory.items() if v]
        columns = [_text("name"), Column("nbytes", "a rank", format_size)]
        yield Section(f"memory, of {format_size(has)}", "", columns, rows)
    stages = row.get("memory_by_stage", ())
    if len(stages) > 1:
        names = ("weights", "gradients", "optimizer", "activations", "buffers", "total")
        columns = [Column("stage", "stage"), *(Column(n, n, format_size) for n in names)]
        yield Section("memory of a rank by stage", "", columns, list(stages))
    if prediction.graph.unsupported:
        known = [
            {"name": u.name, "count": u.count, "nbytes": u.nbytes, "why": u.why}
            for u in prediction.graph.unsupported
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
