"""A plan as tables: what it saves, the strategy of each pair and why, what was not chosen."""

from typing import TYPE_CHECKING, Any

from weft.report.page import Section, html_page
from weft.report.text import Column, bar, page, print_table
from weft.units import format_size, format_time

if TYPE_CHECKING:
    from weft.planner.plan import Choice, Plan


def print_plan(plan: "Plan", *, every: bool = False) -> None:
    """Print a plan, the answer first; ``every`` adds what was not chosen."""
    place = page()
    place.write(headline(plan))
    for note in plan.notes:
        place.write(f"  {note}")
    for section in sections(plan)[: None if every else 1]:
        place.write("")
        print_table(section.columns, section.rows, to=place, title=section.title)


def headline(plan: "Plan") -> str:
    """Say what the plan saves, in one line."""
    where = f"{plan.workload} on {plan.num_ranks} ranks of {plan.platform}"
    if plan.planned >= plan.baseline:
        return f"{where}: {format_time(plan.baseline)} a step, and no plan makes it faster"
    return (
        f"{where}: {format_time(plan.baseline)} a step without a plan, "
        f"{format_time(plan.planned)} with it ({format_time(plan.low)} to "
        f"{format_time(plan.high)}), {100 * plan.gain:.1f} % less, predicted"
    )


def plan_page(plan: "Plan") -> str:
    """Write a plan as a page."""
    title = f"Plan: {plan.workload} on {plan.platform}"
    return html_page(title, sections(plan), lead=". ".join((headline(plan), *plan.notes)))


def sections(plan: "Plan") -> list[Section]:
    """Give the tables of a plan: first what was chosen, then for each pair what was not."""
    rows = [_row(choice) for choice in plan.choices]
    chosen = [
        Column("pair", "pair", right=False, style="bold"),
        Column("times", "times"),
        Column("how", "strategy", right=False, style="green"),
        Column("seconds", "the pair", format_time),
        Column("gain", "saves", "{:.1%}".format),
        Column("bar", "", right=False, style="cyan"),
        Column("why", "why", right=False),
    ]
    found = [Section("what each pair does", "", chosen, rows)]
    others = [
        Column("how", "not chosen", right=False, style="bold"),
        Column("seconds", "the pair", format_time),
        Column("why", "why not", right=False),
    ]
    for choice in plan.choices:
        rows = [
            {"how": how(each.strategy, each.settings), "seconds": each.seconds, "why": each.why}
            for each in choice.alternatives
        ]
        found.append(Section(choice.pair, "", others, rows))
    return found


def how(strategy: str, settings: Any) -> str:
    """Name a strategy with its settings.

    >>> how("partition", {"units": 32}), how("concurrent", {"bucket": 1 << 20})
    ('partition (units 32)', 'concurrent (bucket 1 MiB)')
    """
    shown = {k: format_size(v) if k == "bucket" else v for k, v in settings.items()}
    told = ", ".join(f"{key} {value}" for key, value in shown.items() if key != "priority")
    return f"{strategy} ({told})" if told else strategy


def _row(choice: "Choice") -> dict[str, Any]:
    row = choice.as_row()
    return row | {"how": how(choice.strategy, choice.settings), "bar": bar(choice.gain * 2)}
