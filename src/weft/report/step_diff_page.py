"""The comparison of two timelines of one step: what got longer, what got exposed."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.report.interactive_timeline import timeline_section
from weft.report.page import Section, html_page
from weft.report.picture import KINDS, Picture, PictureLine
from weft.report.text import Column, page, print_table
from weft.timeline.kernel_names import short_name
from weft.timeline.step_profile import StepDiff, StepProfile
from weft.units import format_time

_MOST = 15  # rows on the terminal; a page has all of them
_LITTLE = 0.002  # fraction of the step: smaller differences are not listed
_MEANING = {
    "step": "from its start to the next",
    "compute": "kernels and copies",
    "communication": "collectives run",
    "exposed": "communication not overlapped with kernels",
    "idle": "the device is idle",
}


def print_diff(found: StepDiff) -> None:
    """Print what changed, the answer first."""
    place = page()
    place.write(headline(found))
    for section in sections(found, most=_MOST):
        place.write("")
        print_table(section.columns, section.rows, to=place, title=section.title)
        if section.text:
            place.write(section.text)


def headline(found: StepDiff) -> str:
    """Return what changed, in one sentence."""
    before, after = found.before, found.after
    more = after.seconds - before.seconds
    sides = f"{after.label} takes {format_time(after.seconds)} ({after.basis})"
    other = f"{before.label} {format_time(before.seconds)} ({before.basis})"
    if abs(more) <= _LITTLE * before.seconds:
        return f"{sides}, as long as {other}"
    share = 100 * abs(more) / before.seconds if before.seconds else 0.0
    word = "longer" if more > 0 else "shorter"
    return f"{sides}, {format_time(abs(more))} ({share:.1f} %) {word} than {other}"


def diff_page(found: StepDiff) -> str:
    """Return the page of a comparison, with both timelines."""
    first, *rest = sections(found)
    drawn = [
        timeline_section(
            _picture(profile, found.before.seconds, found.after.seconds),
            f"{word}: {profile.label}, {format_time(profile.seconds)}",
            f"{profile.basis.capitalize()}. Both timelines have the same scale.",
            number=number,
        )
        for number, (word, profile) in enumerate((("before", found.before), ("after", found.after)))
    ]
    return html_page("Two steps compared", [first, *drawn, *rest], lead=headline(found))


def sections(found: StepDiff, *, most: int | None = None) -> list[Section]:
    """Return the tables of a comparison."""
    return list(_sections(found, most))


def _sections(found: StepDiff, most: int | None) -> Iterator[Section]:
    one, other = found.before.totals, found.after.totals
    rows = [
        {"name": name, "before": one[name], "after": other[name], "meaning": _MEANING[name]}
        | {"difference": other[name] - one[name]}
        for name in one
    ]
    meaning = Column("meaning", "", right=False)
    yield Section("where the time went", "", [*_SIDES, meaning], rows)
    for kind, title in (("communication", "collectives"), ("compute", "kernels")):
        changed = [
            _row(change.as_row())
            for change in found.changes
            if change.kind == kind and _matters(found, change.difference, change.exposed)
        ]
        if not changed:
            continue
        exposed = [
            Column("exposed_before", "exposed before", format_time),
            Column("exposed_after", "after", format_time),
        ]
        columns = [*_SIDES, _TIMES, *(exposed if kind == "communication" else ())]
        left = len(changed) - len(changed[:most])
        text = f"{left} more names changed: -o diff.html lists all" if left else ""
        yield Section(f"{title} that changed", text, columns, changed[:most])


def _matters(found: StepDiff, difference: float, exposed: tuple[float, float]) -> bool:
    least = _LITTLE * max(found.before.seconds, found.after.seconds)
    return max(abs(difference), abs(exposed[1] - exposed[0])) > least


def _row(row: dict[str, Any]) -> dict[str, Any]:
    one, other = row["count_before"], row["count_after"]
    return row | {"times": str(one) if one == other else f"{one} → {other}"}


def _signed(seconds: float) -> str:
    if abs(seconds) < 1e-9:
        return "0 s"
    return f"{'+' if seconds >= 0 else '-'}{format_time(abs(seconds))}"


_SIDES = [
    Column("name", "", short_name, right=False, style="bold"),
    Column("before", "before", format_time),
    Column("after", "after", format_time),
    Column("difference", "difference", _signed, style="cyan"),
]
_TIMES = Column("times", "times")


def _picture(profile: StepProfile, *seconds: float) -> Picture:
    """Draw a profile, one line per stream, as wide as the longer of both steps."""
    streams = sorted({op.stream for op in profile.ops})
    names = list(dict.fromkeys(op.name for op in profile.ops))
    number = {name: place for place, name in enumerate(names)}
    line = {stream: place for place, stream in enumerate(streams)}
    kinds = {"compute": "computation", "communication": "communication"}
    ops, wide = profile.ops, max(seconds)
    end = KINDS.index("control")
    names.append("end of the longer step")
    return Picture(
        lines=[PictureLine("", stream) for stream in streams],
        names=names,
        line=np.array([*(line[op.stream] for op in ops), 0], np.int64),
        name=np.array([*(number[op.name] for op in ops), len(names) - 1], np.int64),
        kind=np.array([*(KINDS.index(kinds[op.kind]) for op in ops), end], np.int64),
        start=np.array([*(op.start for op in ops), wide]),
        end=np.array([*(op.end for op in ops), wide * (1 + 1e-6)]),
        waits=np.zeros(len(ops) + 1),
        nbytes=np.zeros(len(ops) + 1, np.int64),
    )
