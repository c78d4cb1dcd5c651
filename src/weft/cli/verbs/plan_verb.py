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
from weft.cli.options import Json, refuse_options, to_file, words
from weft.cli.outputs import output_path, print_json, print_written, write, write_timelines
from weft.errors import UsageError
from weft.result_tables import flat
from weft.units import parse_size

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.hardware.software_stack import SoftwareStack
    from weft.planner.plan import Limits, Plan
    from weft.planner.planning import PlannedStep
    from weft.trace import Trace
    from weft.trace.formats.graph import Graph

_SUFFIXES = (".json", ".json.gz", ".html", ".csv")
_BEGINNING = 64  # bytes at the start of a plan file in which it identifies itself

Workloads = Annotated[
    list[str], typer.Argument(metavar="WORKLOAD..", autocompletion=complete_workload)
]

# What is searched, and how.
SearchFor = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="layout",
        help="layout: find tp, pp, cp, ep, ZeRO, micro batch and recomputation first; what "
        "--set gives is kept.",
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="search|heuristic",
        help="search: until no change shortens the step; heuristic: each collective by itself.",
    ),
]

# What a plan may use.
Budget = Annotated[
    float,
    typer.Option(
        metavar="ERROR", help="Relative error that codecs may introduce; 0: lossless only."
    ),
]
Codecs = Annotated[
    str | None,
    typer.Option("--codec", metavar="C,..", help="Codecs to consider; default: all."),
]
DmaEngines = Annotated[
    int | None,
    typer.Option("--engines", metavar="N", help="DMA engines per rank that a plan may use."),
]
MemoryRoom = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Memory per rank that a plan may use."),
]
Anyway = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help="Plan although the step does not fit into memory, or its replay is inaccurate.",
    ),
]

# What is shown of it.
Emit = Annotated[
    str | None,
    typer.Option(
        metavar="env|torch|fsdp2|ddp|inductor|nccl-tuner|torchcomms",
        help="Print the settings that carry out a plan for GPUs, for programs that do not "
        "import weft; WORKLOAD may be a plan file.",
    ),
]
Every = Annotated[
    bool, typer.Option("--all", help="Also show the alternatives that were not chosen, and why.")
]
PlanFile = Annotated[
    str | None,
    to_file(
        "Write the plan (.json, for weft.torch.apply), a report with both timelines (.html), "
        "the timelines for Perfetto (.json.gz) or all rows (.csv)."
    ),
]


def plan(
    workloads: Workloads,
    *,
    on: On = None,
    ranks: Ranks = None,
    settings: Settings = None,
    stack: Versions = None,
    gpu_hour: GpuHour = None,
    search: SearchFor = None,
    mode: Mode = "search",
    budget: Budget = 0.0,
    codec: Codecs = None,
    engines: DmaEngines = None,
    memory: MemoryRoom = None,
    anyway: Anyway = False,
    emit: Emit = None,
    every: Every = False,
    json: Json = False,
    output: PlanFile = None,
) -> None:
    """Plan one step, or search its layouts."""
    name, versions = split_stack(stack)
    if emit is not None and _is_plan(workloads[0]):
        print_emitted(_read_plan(workloads[0]), emit, on, versions, output)
        return
    path, given = output_path(output, _SUFFIXES), settings_of(settings, name)
    if search is not None:
        from weft.cli.layout_tables import search_layouts

        unused = {
            "--budget": budget or None,
            "--codec": codec,
            "--engines": engines,
            "--memory": memory,
        }
        unused |= {"--anyway": anyway, "--emit": emit, "--all": every}
        refuse_options(unused, "--search layout, which plans no collective")
        price = gpu_hour_of(gpu_hour)
        place = f"--on {on}" if ranks is None else f"--on {on} --ranks {ranks}"
        machine = machine_of(on, ranks)
        search_layouts(search, workloads, machine, given, path, price, place=place, json=json)
        return
    refuse_options({"--gpu-hour": gpu_hour}, "a plan of collectives, only to --search layout")
    limits = replace(_limits(budget, words(codec), engines, memory), stack=versions)
    if traces := _recorded(workloads, given, ranks):
        step = _planned_recorded(traces, on, ranks, mode, limits, anyway=anyway)
    else:
        machine = machine_of(on, ranks)
        step = planned_step(workloads[0], machine, given, mode, limits, anyway=anyway)
    note = _write(path, step) if path else ""
    if emit is not None:
        print_emitted(step.plan, emit, on, versions, None)
        return
    if json:
        rows = [choice.as_row() for choice in step.plan.choices]
        print_json("plan", step.plan.platform, rows, **step.plan.totals())
    else:
        from weft.report.plan_tables import print_plan

        print_plan(step.plan, every=every)
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
        extended = extended_plan(made.plan, job, machine)
        made = replace(made, plan=replace(extended, notes=(*extended.notes, *job.notes)))
    if not added:
        return made
    settings = " ".join(f"--set {key}={value}" for key, value in added.items())
    note = f"{why_spread(workload, machine, given)}; planned with {settings}"
    return replace(made, plan=replace(made.plan, notes=(note, *made.plan.notes)))


def _write(path: Path, step: "PlannedStep") -> str:
    timelines = (step.baseline, step.planned)
    if path.suffix == ".html":
        from weft.report.plan_tables import plan_page

        return write(path, plan_page(step.plan, timelines))
    if path.suffix == ".gz":
        return write_timelines(path, *timelines, labels=("before", "planned"))
    if path.suffix == ".csv":
        return write(path, [flat(choice.as_row()) for choice in step.plan.choices])
    return write(path, step.plan.to_json())
