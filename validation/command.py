"""What ``weft validate`` and ``python -m validation`` do: compute figures and print them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import validation
from validation.group_runs import grouped_targets
from weft.cli.outputs import print_json, print_written, write

if TYPE_CHECKING:
    from validation import Group, Target
    from weft.report.text import Column

_MARKS = {True: "✓", False: "✗", None: "-"}
_ACCURACY = """Every published or measured figure that weft knows, and what weft computes; made
by `weft validate -o FILE.md`, or for some groups by `weft validate NAME.. -o FILE.md`. *Fitted*
figures went into a model and prove nothing; the others are the proof. ✗ is further off than was
allowed before it was computed, - has no limit.
"""
# Plots that the page shows, by group; they are in docs/plots.
_PAGE_PLOTS = {
    "predict": ("ranges", "parity-products", "parity-layers", "parity-attention"),
    "ranges": (
        *("steps", "kernels", "parity-steps", "parity-decode", "parity-moe"),
        "parity-collectives",
    ),
}
_UNITS = {"percent": " %", "points": " points", "ratio": "x", "value": ""}


def run_validation(
    names: Sequence[str], path: Path | None, plots: Path | None, *, json: bool
) -> int:
    """Compute the figures of some groups or of all; return 1 if one exceeds its limit.

    A single group is computed here and now; of several, those whose inputs have not changed since
    they were computed are read.
    """
    groups = [validation.find_group(name) for name in names or validation.group_names()]
    if len(groups) == 1:
        found = [(groups[0], list(groups[0].targets()))]
    else:
        computed = grouped_targets(groups)
        found = [(group, computed[group.name]) for group in groups]
    rows = [target.as_row() for _, targets in found for target in targets]
    notes = [_write(path, found, rows)] if path else []
    if plots is not None:
        notes += _draw(plots, groups)
    if json:
        print_json("validate", None, rows)
    else:
        _print(found)
    print_written("\n".join(notes), quiet=json)
    return 1 if any(row["met"] is False for row in rows) else 0


def _draw(folder: Path, groups: "list[Group]") -> list[str]:
    """Write every plot of the groups to its own file."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = []
    for group in groups:
        for name, chart in group.plots().items():
            path = folder / f"{group.name}-{name}.svg"
            notes.append(write(path, chart.svg()))
    return notes


def _columns() -> "list[Column]":
    from weft.report.text import Column

    return [
        Column("mark", "", right=False, style="bold"),
        Column("scenario", "figure", right=False),
        Column("published", "published", _number),
        Column("weft", "weft", _number),
        Column("unit", "", right=False),
        Column("shown_error", "error"),
        Column("shown_limit", "allowed"),
        Column("shown_fitted", "fitted", right=False, optional=True),
        Column("citation", "source", right=False, optional=True),
        Column("note", "note", right=False, optional=True),
    ]


def _number(value: float) -> str:
    return f"{value:.4g}"


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Format a row for display: signs, units, yes and no."""
    unit, error, limit = _UNITS[row["error_in"]], row["error"], row["tolerance"]
    sign = "+" if row["error_in"] in ("percent", "points") else ""
    return row | {
        "mark": _MARKS[row["met"]],
        "shown_error": "" if error is None else f"{error:{sign}.1f}{unit}",
        "shown_limit": "" if limit is None else f"{limit:g}{unit}",
        "shown_fitted": "fitted" if row["fitted"] else "",
    }


def _print(found: "list[tuple[Group, list[Target]]]") -> None:
    from weft.report.text import print_table

    for group, targets in found:
        for part, mine in _parts(targets):
            rows = [_shown(target.as_row()) for target in mine]
            print_table(_columns(), rows, title=f"{group.name}, {part}: {group.question}")
        print(_summary(targets) + "\n")


def _parts(targets: "list[Target]") -> Iterator[tuple[str, "list[Target]"]]:
    """Yield figures that nothing was fitted to apart from those that prove nothing."""
    for part, fitted in (("unseen", False), ("fitted", True)):
        if mine := [target for target in targets if target.fitted == fitted]:
            yield part, mine


def _summary(targets: "list[Target]") -> str:
    if not targets:
        return "It needs measured data: set WEFT_DATA to the folder that has it."
    limited = [target for target in targets if target.met is not None]
    if not limited:
        return "None of its figures has a limit."
    proving = [target for target in limited if not target.fitted]
    return (
        f"{sum(bool(t.met) for t in limited)} of {len(limited)} within what is allowed; of those "
        f"that were not fitted to {sum(bool(t.met) for t in proving)} of {len(proving)}."
    )


def _write(
    path: Path, found: "list[tuple[Group, list[Target]]]", rows: list[dict[str, Any]]
) -> str:
    if path.suffix == ".csv":
        return write(path, rows)
    if path.suffix == ".md":
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        return write(path, _markdown(found, before, path.parent / "plots"))
    from weft.report.page import Section, html_page

    sections = [
        Section(
            group.name,
            f"{group.question} {_summary(targets)}",
            _columns(),
            [_shown(target.as_row()) for target in targets],
            mark="met",
            drawings=[chart.figure() for chart in group.plots().values()],
        )
        for group, targets in found
    ]
    page = html_page("Published figures compared with weft's", sections)
    return write(path, page)


def _markdown(found: "list[tuple[Group, list[Target]]]", before: str, plots: Path) -> str:
    """Return the tables as one page, the groups one below the other in the order of their names.

    Of the page as it was ``before``, sections of groups that are not among those found stay.
    """
    _, *kept = before.split("\n## ")
    sections = {each.partition("\n")[0]: f"## {each.rstrip()}\n" for each in kept}
    sections = {name: sections[name] for name in validation.group_names() if name in sections}
    sections |= {group.name: _section(group, targets, plots) for group, targets in found}
    known = [sections[name] for name in sorted(sections)]
    return "\n".join(["# How far off is weft?\n", _ACCURACY, *known])


def _section(group: "Group", targets: "list[Target]", plots: Path) -> str:
    """Return the tables of a group, and the plots of it that were drawn into the page's folder."""
    from validation.markdown_tables import markdown_table

    parts = [f"## {group.name}\n", f"{group.question} {_summary(targets)}\n"]
    names = _PAGE_PLOTS.get(group.name, ())
    drawn = [name for name in names if (plots / f"{group.name}-{name}.svg").is_file()]
    parts += [f"![{name.replace('-', ', ')}](plots/{group.name}-{name}.svg)\n" for name in drawn]
    for part, mine in _parts(targets):
        rows = [_shown(target.as_row()) for target in mine]
        parts += [f"### {group.name}, {part}\n", markdown_table(_columns(), rows)]
    return "\n".join(parts)
