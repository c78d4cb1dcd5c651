"""The comparison of two timelines of one step: what got longer, what got exposed."""

from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from weft.report.interactive_timeline import timeline_section
from weft.report.page import Section, html_page
from weft.report.picture import KINDS, Picture, PictureLine
from weft.report.text import Column, page, print_table
from weft.timeline.kernel_names import short_name
from weft.timeline.step_diff import LITTLE, OpChange, StepDiff
from weft.timeline.step_profile import StepProfile
from weft.units import format_mean, format_time

_MOST = 15  # rows on the terminal; a page has all of them
_MEANING = {
    "step": "from its start to the next",
    "compute": "kernels and copies",
    "communication": "collectives run",
    "exposed": "communication not overlapped with kernels",
    "waiting": "communication that waits for other ranks",
    "moving": "communication that moves bytes",
    "idle": "the device is idle",
}


def print_diff(found: StepDiff) -> None:
    """Print what changed, the answer first."""
    place = page()
    place.write_wrapped(headline(found))
    for note in found.notes:
        place.write_wrapped(f"  {note}", indent="  ")
    for number, cause in enumerate(found.causes, start=1):
        place.write_wrapped(f"{number}. {cause}", indent="   ")
    for section in sections(found, most=_MOST):
        place.write("")
        print_table(section.columns, section.rows, to=place, title=section.title)
        if section.text:
            place.write(section.text)


def headline(found: StepDiff) -> str:
    """Return what changed, in one sentence."""
    step, (before, after) = found.step, found.sides
    sides = f"{after.label} takes {format_time(step.after)} ({found.after.basis})"
    other = f"{before.label}, {format_time(step.before)} ({found.before.basis})"
    counts = [len(side.profiles) for side in found.sides]
    if step.significant is False:
        return (
            f"no significant difference: {sides}, {other}; steps of the same run differ by as much "
            f"({counts[1]} and {counts[0]} steps, p = {step.p:.2g})"
        )
    if abs(step.difference) <= LITTLE * step.before:
        return f"{sides}, as long as {other}"
    share = 100 * abs(step.difference) / step.before if step.before else 0.0
    word = "longer" if step.difference > 0 else "shorter"
    text = f"{sides}, {format_time(abs(step.difference))} ({share:.1f} %) {word} than {other}"
    if step.significant:
        return f"{text}; {counts[1]} and {counts[0]} steps, p = {step.p:.2g}"
    if "measured" in (found.before.basis, found.after.basis):
        return f"{text}; one step on a side: whether that is noise is unknown"
    return text


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
    listed = "".join(f"<li>{escape(cause)}</li>\n" for cause in found.causes)
    why = [Section("Why", "", drawings=[f"<ol>\n{listed}</ol>"])] if listed else []
    return html_page(
        "Two steps compared",
        [*why, first, *drawn, *rest],
        lead="; ".join((headline(found), *found.notes)),
    )


def sections(found: StepDiff, *, most: int | None = None) -> list[Section]:
    """Return the tables of a comparison."""
    return list(_sections(found, most))


def _sections(found: StepDiff, most: int | None) -> Iterator[Section]:
    rows = [part.as_row() | {"meaning": _MEANING[part.name]} for part in found.parts]
    meaning = Column("meaning", "", right=False)
    sure = [_SURE] if found.is_tested else []
    yield Section("Where the time went", "", [*_SIDES, *sure, meaning], rows)
    for kind, title in (("communication", "Collectives"), ("compute", "Kernels")):
        changed = [
            _row(change.as_row())
            for change in found.changes
            if change.kind == kind and _matters(found, change)
        ]
        if not changed:
            continue
        exposed = [
            Column("exposed_before", "exposed before", format_time),
            Column("exposed_after", "after", format_time),
        ]
        columns = [*_SIDES, *sure, _TIMES, *(exposed if kind == "communication" else ())]
        left = len(changed) - len(changed[:most])
        text = f"{left} more names changed: -o diff.html lists all" if left else ""
        yield Section(f"{title} that changed", text, columns, changed[:most])


def _matters(found: StepDiff, change: OpChange) -> bool:
    least = LITTLE * max(found.step.before, found.step.after)
    open_ = change.exposed[1] - change.exposed[0]
    return change.significant is not False and max(abs(change.difference), abs(open_)) > least


def _row(row: dict[str, Any]) -> dict[str, Any]:
    one, other = row["count_before"], row["count_after"]
    times = format_mean(one)
    return row | {"times": times if one == other else f"{times} → {format_mean(other)}"}


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
_SURE = Column("significant", "significant", {True: "yes", False: "no"}.__getitem__)


def _picture(profile: StepProfile, *seconds: float) -> Picture:
    """Draw a profile, one line per stream, as wide as the longer of both steps."""
    streams = sorted({op.stream for op in profile.ops})
    names = list(dict.fromkeys(op.name for op in profile.ops))
    number = {name: index for index, name in enumerate(names)}
    line = {stream: index for index, stream in enumerate(streams)}
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
