"""A plan as tables: what it saves, the strategy of each collective and why, alternatives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.planner.plan import Choice, Plan
from weft.report.interactive_timeline import timeline_section
from weft.report.page import Section, html_page
from weft.report.picture import picture_of, stacked
from weft.report.text import Column, bar, page, print_table, sentence
from weft.timeline import Timeline
from weft.units import format_count, format_time


def print_plan(plan: "Plan", *, every: bool = False) -> None:
    """Print a plan, the answer first; ``every`` adds the alternatives."""
    place = page()
    place.write_wrapped(headline(plan))
    for note in plan.notes:
        place.write_wrapped(f"  {note}", "  ")
    if not plan.choices:
        place.write_wrapped(
            "  nothing to plan: the step has no collective of known size (traces record sizes with "
            "record_shapes=True)",
            "  ",
        )
        return
    for section in sections(plan)[: None if every else 1]:
        place.write("")
        print_table(section.columns, section.rows, to=place, title=section.title)


def _workload(plan: "Plan") -> str:
    """Return the name of the step; of traces the names of their files."""
    return ", ".join(Path(each).name for each in plan.workload.split(", "))


def headline(plan: "Plan") -> str:
    """Return what the plan saves, in one line."""
    where = f"{_workload(plan)} on {format_count(plan.num_ranks, 'rank')} of {plan.platform}"
    if plan.planned >= plan.baseline:
        return f"{where}: {format_time(plan.baseline)} a step, and no plan makes it faster"
    return (
        f"{where}: {format_time(plan.baseline)} a step without a plan, "
        f"{format_time(plan.planned)} with it ({format_time(plan.low)} to "
        f"{format_time(plan.high)}), {100 * plan.gain:.1f} % less, predicted"
    )


def plan_page(plan: "Plan", timelines: "Sequence[Timeline]" = ()) -> str:
    """Return the page of a plan, with the timelines before and after if given."""
    title = f"Plan: {_workload(plan)} on {plan.platform}"
    chosen, *others = sections(plan)
    titles = (f"before: {format_time(plan.baseline)}", f"planned: {format_time(plan.planned)}")
    drawn = []
    if timelines:
        pictures = map(picture_of, timelines)
        picture = stacked(dict(zip(titles, pictures, strict=False)))
        text = "The step as torch runs it, and as planned below it, on one axis. Predicted."
        drawn.append(timeline_section(picture, "The step before and after", text))
    lead = " ".join((f"{headline(plan)}.", *map(sentence, plan.notes)))
    return html_page(title, [chosen, *drawn, *others], lead=lead)


def sections(plan: "Plan") -> list[Section]:
    """Return the tables of a plan: the choices, then the alternatives."""
    rows = [_row(choice) for choice in plan.choices]
    chosen = [
        Column("pair", "collective", right=False, style="bold"),
        Column("times", "times"),
        Column("how", "strategy", right=False, style="green"),
        Column("seconds", "takes", format_time),
        Column("gain", "saves", "{:.1%}".format),
        Column("bar", "", right=False, style="cyan", spare=True),
        Column("why", "why", right=False),
    ]
    found = [Section("What each collective does", "", chosen, rows)]
    rows = [
        {
            "pair": choice.pair if number == 0 else "",
            "how": str(each.strategy),
            "seconds": each.seconds,
            "why": each.why,
        }
        for choice in plan.choices
        for number, each in enumerate(choice.alternatives)
    ]
    others = [
        Column("pair", "collective", right=False, style="bold"),
        Column("how", "not chosen", right=False),
        Column("seconds", "the step", format_time),
        Column("why", "why not", right=False),
    ]
    fold = f"{len(rows)} alternatives of {format_count(len(plan.choices), 'collective')}"
    return [*found, Section("What was not chosen, and why", "", others, rows, fold=fold)]


def _row(choice: "Choice") -> dict[str, Any]:
    row = choice.as_row()
    return row | {"how": str(choice.strategy), "bar": bar(choice.gain * 2)}
