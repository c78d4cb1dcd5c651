"""``weft plan``: which strategy each collective of a step should use, and what that saves."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.inputs import (
    GpuHour,
    On,
    Ranks,
    Settings,
    Versions,
    complete_workload,
    gpu_hour_of,
    machine_of,
    recorded,
    settings_of,
    split_stack,
)
from weft.cli.options import Json, to_file, words
from weft.cli.outputs import output_path, print_json, print_written, write, write_timelines
from weft.errors import UsageError
from weft.result_tables import flat
from weft.units import parse_size

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.hardware.software_stack import SoftwareStack
    from weft.planner.plan import Limits, Plan
    from weft.planner.planning import PlannedStep
    from weft.timeline import Timeline
    from weft.trace import Trace
    from weft.trace.formats.graph import Graph

_SUFFIXES = (".json", ".json.gz", ".html", ".csv")
_BEGINNING = 64  # bytes at the start of a plan file in which it identifies itself


def plan(
    workloads: Annotated[
        list[str], typer.Argument(metavar="WORKLOAD..", autocompletion=complete_workload)
    ],
    *,
    on: On = None,
    ranks: Ranks = None,
    settings: Settings = None,
    stack: Versions = None,
    gpu_hour: GpuHour = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="layout",
            help="layout: find tp, pp, cp, ep, ZeRO, micro batch and recomputation first; what "
            "--set gives is kept.",
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="search|heuristic",
            help="search: until no change shortens the step; heuristic: each collective by itself.",
        ),
    ] = "search",
    budget: Annotated[
        float,
        typer.Option(
            metavar="ERROR", help="Relative error that codecs may introduce; 0: lossless only."
        ),
    ] = 0.0,
    codec: Annotated[
        str | None, typer.Option(metavar="C,..", help="Codecs to consider; default: all.")
    ] = None,
    engines: Annotated[
        int | None, typer.Option(metavar="N", help="DMA engines per rank that a plan may use.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory per rank that a plan may use.")
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Plan although the step does not fit into memory, or its replay is inaccurate.",
        ),
    ] = False,
    emit: Annotated[
        str | None,
        typer.Option(
            metavar="env|torch|fsdp2|ddp|inductor|nccl-tuner|torchcomms",
            help="Print the settings that carry a plan for GPUs out, for programs that do not "
            "import weft; WORKLOAD may be a plan file.",
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Also show the alternatives that were not chosen, and why."),
    ] = False,
    json: Json = False,
    output: Annotated[
        str | None,
        to_file(
            "Write the plan (.json, for weft.torch.apply), a report with both timelines (.html), "
            "the timelines for Perfetto (.json.gz) or all rows (.csv)."
        ),
    ] = None,
) -> None:
    """Plan one step."""
    name, versions = split_stack(stack)
    if emit is not None and _is_plan(workloads[0]):
        print_emitted(_read_plan(workloads[0]), emit, on, versions, output)
        return
    path, given = output_path(output, _SUFFIXES), settings_of(settings, name)
    if search is not None:
        from weft.cli.layout_tables import search_layouts

        price = gpu_hour_of(gpu_hour)
        search_layouts(search, workloads, machine_of(on, ranks), given, path, price, json=json)
        return
    limits = replace(_limits(budget, words(codec), engines, memory), stack=versions)
    workload, traces = workloads[0], _recorded(workloads, given, ranks)
    if traces:
        step = _planned_recorded(traces, on, ranks, mode, limits, anyway=anyway)
    else:
        machine = machine_of(on, ranks)
        step = planned_step(workload, machine, given, mode, limits, anyway=anyway)
    found, timelines = step.plan, (step.baseline, step.planned)
    note = _write(path, found, timelines) if path else ""
    if emit is not None:
        print_emitted(found, emit, on, versions, None)
        return
    if json:
        rows = [choice.as_row() for choice in found.choices]
        print_json("plan", found.platform, rows, **found.totals())
    else:
        from weft.report.plan_tables import print_plan

        print_plan(found, every=every)
    print_written(note, quiet=json)


def _is_plan(word: str) -> bool:
    """Return whether a word names a plan file."""
    path = Path(word)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b"weft_plan" in file.read(_BEGINNING)


def _read_plan(word: str) -> "Plan":
    from weft.planner.plan import read_plan

    return read_plan(Path(word))


def print_emitted(
    plan: "Plan", what: str, on: str | None, versions: "SoftwareStack", output: str | None
) -> None:
    """Print the knobs of a plan, or write them to a file."""
    from weft.gpu.emit import emit
    from weft.hardware import platform
    from weft.hardware.software_stack import completed_stack
    from weft.planner.plan_knobs import plan_knobs

    device = platform(on or plan.platform, num_ranks=plan.num_ranks).require_device()
    running = completed_stack(versions, device.vendor) if versions.versions else None
    text = emit(what, plan_knobs(plan, device, running))
    if output is None:
        typer.echo(text, nl=False)
    else:
        print_written(write(Path(output), text.encode()))


def _planned_recorded(
    found: "list[Trace | Graph]",
    on: str | None,
    ranks: int | None,
    mode: str,
    limits: "Limits",
    *,
    anyway: bool,
) -> "PlannedStep":
    """Plan the traces of a job, or a graph without times that every rank runs."""
    from weft.planner.planning import check_mode, plan_step
    from weft.trace import Trace
    from weft.trace.recorded.untimed_graph import step_of_graph
    from weft.whatif.planned import plan_recorded

    check_mode(mode)
    graphs = [each for each in found if not isinstance(each, Trace)]
    if not graphs:
        traces = [each for each in found if isinstance(each, Trace)]
        there = None if on is None else machine_of(on)
        return plan_recorded(traces, on=there, limits=limits, mode=mode, anyway=anyway)
    if len(found) > 1:
        raise UsageError(
            f"WORKLOAD: expected one graph without times (got {len(found)} files)",
            "Plan the graph of one rank: all ranks run it.",
        )
    machine = machine_of(on, ranks)
    graph = step_of_graph(graphs[0], machine.num_ranks)
    return plan_step(graph, machine, mode=mode, limits=limits, anyway=anyway)


def _recorded(words: list[str], given: dict[str, str], ranks: int | None) -> "list[Trace | Graph]":
    """Read the traces of one job; return none if a single word names a workload."""
    found = {word: recorded(word, given, ranks) for word in words}
    if len(words) == 1 or all(found.values()):
        return [trace for traces in found.values() for trace in traces]
    other = next(word for word, traces in found.items() if not traces)
    raise UsageError(
        f"WORKLOAD: {other!r} is not a trace file (got {len(words)} words, expected one workload "
        "or the traces of one job)",
        "Plan one workload at a time, or give the files of one job: weft plan rank*.json.gz",
    )


def _limits(
    budget: float, codecs: tuple[str, ...], engines: int | None, memory: str | None
) -> "Limits":
    from weft.planner.plan import Limits

    room = parse_size(memory) if memory else None
    return Limits(error=budget, codecs=codecs, engines=engines, memory=room)


def planned_step(
    workload: str,
    machine: "Platform",
    given: dict[str, str],
    mode: str,
    limits: "Limits",
    *,
    anyway: bool,
) -> "PlannedStep":
    """Plan a workload; if it does not fit, add settings that make it fit, with a note."""
    from weft.models.find import find_job
    from weft.planner.job_prediction import extended_plan
    from weft.planner.planning import plan_step
    from weft.planner.spreading import spread, why_spread

    found, added = spread(workload, machine, given, anyway=anyway)
    job = find_job(workload, machine.num_ranks, given | added)
    software = None if job is None else job.software
    made = plan_step(found, machine, mode=mode, limits=limits, anyway=anyway, software=software)
    if job is not None:
        made = replace(made, plan=extended_plan(made.plan, job, machine))
    if not added:
        return made
    settings = " ".join(f"--set {key}={value}" for key, value in added.items())
    note = f"{why_spread(workload, machine, given)}; planned with {settings}"
    return replace(made, plan=replace(made.plan, notes=(note, *made.plan.notes)))


def _write(path: Path, plan: "Plan", timelines: "tuple[Timeline, ...]") -> str:
    if path.suffix == ".html":
        from weft.report.plan_tables import plan_page

        return write(path, plan_page(plan, timelines))
    if path.suffix == ".gz":
        return write_timelines(path, *timelines, labels=("before", "planned"))
    if path.suffix == ".csv":
        return write(path, [flat(choice.as_row()) for choice in plan.choices])
    return write(path, plan.to_json())
