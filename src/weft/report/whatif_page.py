"""The page of what-if questions: the step time with each change, and its uncertainty."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from weft.report.bars import ChartBar, bar_chart
from weft.report.interactive_timeline import timeline_section
from weft.report.page import Section, html_page, tiles
from weft.report.picture import picture_of
from weft.report.text import Column, sentence
from weft.units import format_time
from weft.whatif import Answer, Outcome

_SHOWN_SPANS = 30_000  # spans of each timeline: a page has up to four
_TIMELINES = 2  # the replay and the best change


def page(answers: Sequence[Answer]) -> str:
    """Return the page of the answers, one per job."""
    of = [f": {_title(answer)}" if len(answers) > 1 else "" for answer in answers]
    sections = [
        s for answer, name in zip(answers, of, strict=True) for s in _sections(answer, name)
    ]
    timelines = [
        section
        for number, answer in enumerate(answers)
        for section in _timelines(answer, of[number], number * _TIMELINES)
    ]
    first = answers[0] if answers else None
    return html_page(
        f"What if: {_title(first)}" if first and len(answers) == 1 else "What if",
        [*sections, *timelines],
        lead=_lead(first) if first else "Nothing was asked.",
        top=tiles(_tiles(first)) if first and len(answers) == 1 else "",
    )


def _title(answer: Answer) -> str:
    files = answer.file.split(", ")
    return Path(files[0]).name if len(files) == 1 else f"{len(files)} ranks"


def _best(answer: Answer) -> Outcome | None:
    return min(answer.outcomes, key=lambda outcome: outcome.step, default=None)


def _lead(answer: Answer) -> str:
    best = _best(answer)
    lead = (
        f"{answer.which_step.capitalize()} of {format_time(answer.measured_step)} is replayed as "
        f"{format_time(answer.replayed_step)} ({percent(answer.replay_error)})."
    )
    if answer.doubt:
        lead += f" Unreliable: {answer.doubt}."
    if best is None or best.gain <= 0:
        return f"{lead} No change that was tried makes it shorter."
    return f"{lead} {best.name} saves most, {saved(best.gain)}: {best.why}."


def _tiles(answer: Answer) -> list[tuple[str, str, str]]:
    best = _best(answer)
    found = [
        ("Measured step", format_time(answer.measured_step), "from the trace"),
        ("Replayed step", format_time(answer.replayed_step), "simulated, nothing changed"),
        ("Error of the replay", percent(answer.replay_error), "an indication of the accuracy"),
    ]
    if best is not None:
        found.append((f"With {best.name}", format_time(best.step), f"saves {saved(best.gain)}"))
    return found


def _sections(answer: Answer, of: str) -> Iterator[Section]:
    yield _changes(answer, of)
    yield _replays(answer, of)


def _changes(answer: Answer, of: str) -> Section:
    """Return a bar with its range for every change, the shortest step first."""
    found = sorted(answer.outcomes, key=lambda outcome: outcome.step)
    bars = [
        ChartBar(
            "as it was", {"replayed": answer.replayed_step}, format_time(answer.replayed_step)
        ),
        *(
            ChartBar(
                each.name,
                {"with the change": each.step},
                f"{format_time(each.step)}, {percent(-each.gain)}",
                each.low,
                each.high,
            )
            for each in found
        ),
    ]
    columns = [
        Column("name", "change", right=False),
        Column("step", "step", format_time),
        Column("range", "range"),
        Column("gain", "saves", percent),
        Column("why", "assumption", right=False),
    ]
    rows = [
        each.as_row() | {"range": f"{format_time(each.low)} to {format_time(each.high)}"}
        for each in found
    ]
    text = (
        "How long a step would take with each change alone, predicted. The line across all bars "
        "is the replayed step; the thin bar over each is its range."
    )
    kinds = {"replayed": "control", "with the change": "computation"}
    label = "Length of a step with each change"
    chart = bar_chart(bars, kinds, label=label, line=answer.replayed_step)
    return Section(
        f"What each change would do{of}",
        text,
        columns,
        rows,
        drawings=[chart],
        fold="Every change with its range and its assumption",
        unfolded=True,
    )


def saved(share: float) -> str:
    """Format a gain; zero is never negative.

    >>> saved(0.535)
    '53.5 %'
    """
    return f"{round(100 * share, 1) + 0.0:.1f} %"


def percent(share: float) -> str:
    """Format a fraction with its sign; zero is never negative.

    >>> percent(0.0312), percent(-1e-5)
    ('+3.1 %', '+0.0 %')
    """
    return f"{round(100 * share, 1) + 0.0:+.1f} %"


def _replays(answer: Answer, of: str) -> Section:
    columns = [
        Column("name", "step", right=False),
        Column("measured", "measured", format_time),
        Column("simulated", "replayed", format_time),
        Column("error", "error", percent),
        Column("held", "put together from", right=False),
    ]
    rows = [
        {
            "name": each.name,
            "measured": each.measured,
            "simulated": each.simulated,
            "error": each.error,
            "held": "the other steps" if each.held_out else "itself",
        }
        for each in answer.replays
    ]
    notes = " ".join(map(sentence, answer.notes))
    text = (
        "Before anything is changed, the recorded steps are simulated: how far that is from what "
        f"was measured says how far to trust the changes. {notes}"
    )
    return Section(f"How well the replay fits{of}", text.strip(), columns, rows)


def _timelines(answer: Answer, of: str, number: int) -> Iterator[Section]:
    """Yield the timelines of the replay and of the best change, over several iterations."""
    best = _best(answer)
    changed = [best.name] if best is not None and best.gain > 0 else []
    for index, name in enumerate(["", *changed]):
        if name not in answer.runs:
            continue
        timeline = answer.timeline(name or None)
        title = f"Timeline with {name}" if name else "Timeline as replayed"
        text = "Simulated, several steps in a row; the critical path is underlined."
        yield timeline_section(
            picture_of(timeline), f"{title}{of}", text, number=number + index, most=_SHOWN_SPANS
        )
