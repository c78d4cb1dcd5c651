"""``weft diff``: the difference between two timelines of the same step."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.inputs import RECORDED, On, Ranks, Settings, is_recorded, machine_of, settings_of
from weft.cli.options import Json, to_file
from weft.cli.outputs import output_path, print_json, print_written, write
from weft.errors import FormatError, UsageError

if TYPE_CHECKING:
    from weft.timeline.step_diff import StepDiff, StepSide


def diff(
    steps: Annotated[
        list[str],
        typer.Argument(
            metavar="BEFORE [AFTER]",
            help="Traces (a file, a folder or a quoted pattern), or workloads as weft predict "
            "takes them, each with its own platform as llama-8b@h100-8.",
        ),
    ],
    *,
    on: On = None,
    ranks: Ranks = None,
    settings: Settings = None,
    planned: Annotated[
        bool, typer.Option("--planned", help="Compare one workload with itself as planned.")
    ] = False,
    kernels: Annotated[
        bool,
        typer.Option("--kernels", help="Compare kernels of traces by name, not by operator."),
    ] = False,
    json: Json = False,
    output: Annotated[
        str | None, to_file("Write a report with both timelines (.html) or all rows (.csv).")
    ] = None,
) -> None:
    """Compare two steps."""
    from weft.timeline.step_diff import diff_sides

    path, given = output_path(output, (".html", ".csv")), settings_of(settings)
    if len(steps) != (1 if planned else 2):
        raise UsageError(
            f"BEFORE AFTER: got {len(steps)} steps, expected {1 if planned else 2}",
            "Use weft diff BEFORE AFTER, or weft diff WORKLOAD --planned.",
        )
    notes: tuple[str, ...] = ()
    if planned:
        before, after, notes = _planned(steps[0], on, ranks, given)
    else:
        shapes = all(map(is_recorded, steps))
        before, after = (
            _side(step, on, ranks, given, by_op=not kernels, shapes=shapes) for step in steps
        )
    show_diff(replace(diff_sides(before, after), notes=notes), path, json=json)


def show_diff(found: "StepDiff", path: Path | None, *, json: bool, verb: str = "diff") -> None:
    """Write and print a comparison."""
    note = ""
    if path and path.suffix == ".html":
        from weft.report.step_diff_page import diff_page

        note = write(path, diff_page(found))
    elif path:
        note = write(path, [change.as_row() for change in found.changes])
    if json:
        labels = [side.label for side in found.sides]
        rows = [change.as_row() for change in found.changes]
        print_json(
            verb,
            None,
            rows,
            before={part.name: part.before for part in found.parts},
            after={part.name: part.after for part in found.parts},
            parts=[part.as_row() for part in found.parts],
            causes=found.causes,
            labels=labels,
            matched=found.matched,
            notes=found.notes,
            basis=f"{found.before.basis}, {found.after.basis}",
        )
    else:
        from weft.report.step_diff_page import print_diff

        print_diff(found)
    print_written(note, quiet=json)


def _side(
    step: str,
    on: str | None,
    ranks: int | None,
    given: dict[str, str],
    *,
    by_op: bool,
    shapes: bool,
) -> "StepSide":
    """Read or predict one side."""
    from weft.timeline.step_diff import StepSide
    from weft.timeline.step_profile import StepProfile

    if is_recorded(step):
        from weft.trace import analyze
        from weft.trace.analysis.trace_profile import side_of

        return side_of(analyze(step), by_op=by_op, shapes=shapes)
    from weft.models.find import find_workload
    from weft.planner.predict import predict

    spec, where = _spec(step)
    machine = machine_of(where or on, ranks, instead=f", or {spec}@mi300x-8")
    workload = find_workload(spec, machine.num_ranks, given)
    timeline = predict(workload, machine, anyway=True).timeline
    return StepSide.of(StepProfile.of_timeline(timeline, f"{spec} on {machine.name}"))


def _planned(
    step: str, on: str | None, ranks: int | None, given: dict[str, str]
) -> "tuple[StepSide, StepSide, tuple[str, ...]]":
    """Plan a workload; return its step as torch runs it and as planned, and the plan's notes."""
    from weft.cli.verbs.plan_verb import planned_step
    from weft.planner.plan import Limits
    from weft.timeline.step_diff import StepSide
    from weft.timeline.step_profile import StepProfile

    if is_recorded(step):
        raise UsageError(
            f"--planned: {step} is a trace (expected a workload)",
            "Use weft plan for the plan of a trace, weft whatif for its timelines.",
        )
    spec, where = _spec(step)
    machine = machine_of(where or on, ranks)
    made = planned_step(spec, machine, given, "search", Limits(), anyway=False)
    return (
        StepSide.of(StepProfile.of_timeline(made.baseline, f"{spec} as torch runs it")),
        StepSide.of(StepProfile.of_timeline(made.planned, f"{spec} as planned")),
        made.plan.notes,
    )


def _spec(step: str) -> tuple[str, str]:
    """Split ``WORKLOAD@PLATFORM``; a file name is kept whole."""
    if step.endswith(RECORDED) and not Path(step).exists():
        raise FormatError(f"file not found: {step}")
    if Path(step).exists():
        return step, ""
    spec, at, where = step.rpartition("@")
    return (spec, where) if at else (step, "")
