"""``weft predict``: the duration of one step, and where the time goes."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import (
    GpuHour,
    On,
    Ranks,
    Settings,
    Stack,
    complete_workload,
    gpu_hour_of,
    machine_of,
    recorded,
    settings_of,
)
from weft.cli.options import Json, to_file
from weft.cli.outputs import output_path, print_json, print_written, write, write_timelines
from weft.errors import UsageError
from weft.result_tables import flat

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.models.job import Job
    from weft.planner.predict import Prediction
    from weft.trace import Trace
    from weft.trace.formats.graph import Graph

_WORKLOAD = ".workload.json"
_SUFFIXES = (".json", ".json.gz", ".html", ".csv")


EveryRank = Annotated[
    bool,
    typer.Option("--every-rank", help="Capture each rank separately; use it if ranks differ."),
]
Anyway = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help="Predict although the step does not fit into memory, or its replay is inaccurate.",
    ),
]
Library = Annotated[
    str | None,
    typer.Option(
        "--library",
        metavar="NAME",
        help="Library of the collectives: nccl; on here: gloo or weft.",
    ),
]
StepFile = Annotated[
    str | None,
    to_file(
        "Write the timeline (.json, .json.gz for Perfetto), a report (.html), the row "
        "(.csv) or the workload itself (.workload.json)."
    ),
]


def predict(
    graph: Annotated[str, typer.Argument(metavar="WORKLOAD", autocompletion=complete_workload)],
    *,
    on: On = None,
    ranks: Ranks = None,
    settings: Settings = None,
    stack: Stack = None,
    gpu_hour: GpuHour = None,
    every_rank: EveryRank = False,
    anyway: Anyway = False,
    library: Library = None,
    json: Json = False,
    output: StepFile = None,
) -> None:
    """Predict one step."""
    path, given = output_path(output, _SUFFIXES), settings_of(settings, stack)
    price = gpu_hour_of(gpu_hour)
    machine = machine_of(on, ranks)
    traces = recorded(graph, given, ranks)
    job = None
    if len(traces) > 1:
        raise UsageError(
            f"WORKLOAD: expected the trace of one rank (got {len(traces)} in {graph!r})",
            "Name one file, or change all ranks together: weft whatif TRACE.. --on PLATFORM",
        )
    if traces:
        prediction = _of_recorded(traces[0], machine, library=library, anyway=anyway)
    else:
        prediction, job = _of_workload(
            graph, machine, given, library=library, every_rank=every_rank, anyway=anyway
        )
    row = prediction.row()
    if job is not None:
        row |= job.row(prediction.seconds, peak_flops(job, machine), price)
    note = _write(path, prediction, row) if path else ""
    if json:
        print_json("predict", machine.name, [row])
    else:
        from weft.report.step_tables import print_step

        print_step(prediction, row)
    print_written(note, quiet=json)


def peak_flops(job: "Job", machine: "Platform") -> float:
    """Return the rated flop/s of a device for the products of a job."""
    from weft.cost.peak_rates import rated_flops
    from weft.hardware.dtypes import scheme_of

    math = getattr(job.model, "math", "") or job.model.dtype
    return rated_flops(machine.require_device(), scheme_of(math).math)


def _of_recorded(
    found: "Trace | Graph", machine: "Platform", *, library: str | None, anyway: bool
) -> "Prediction":
    from weft.planner.predict import predict as predicted
    from weft.planner.prices import Prices, default_library, known_library
    from weft.trace import Trace
    from weft.trace.recorded.untimed_graph import step_of_graph
    from weft.whatif import predict_trace

    if isinstance(found, Trace):
        return predict_trace(found, machine, anyway=anyway)
    prices = Prices(machine, library=known_library(machine, library or default_library(machine)))
    step = step_of_graph(found, machine.num_ranks)
    return predicted(step, machine, anyway=anyway, prices=prices)


def _of_workload(
    spec: str,
    machine: "Platform",
    given: dict[str, str],
    *,
    library: str | None,
    every_rank: bool,
    anyway: bool,
) -> "tuple[Prediction, Job | None]":
    from weft.models.find import find_job, find_workload, is_configuration
    from weft.planner.job_prediction import predict_job
    from weft.planner.predict import predict as predicted
    from weft.planner.prices import Prices, default_library, known_library
    from weft.planner.spreading import spread, why_spread

    added: dict[str, str] = {}
    if is_configuration(spec) and not anyway:  # it may say nothing of how a step is laid out
        _, added = spread(spec, machine, given)
    job = find_job(spec, machine.num_ranks, given | added)
    if job is not None and added:
        settings = " ".join(f"--set {key}={value}" for key, value in added.items())
        note = f"{why_spread(spec, machine, given)}; predicted with {settings}"
        job = replace(job, notes=(note, *job.notes))
    prices = Prices(machine, library=known_library(machine, library or default_library(machine)))
    if job is not None:
        return predict_job(job, machine, anyway=anyway, prices=prices), job
    found = find_workload(spec, machine.num_ranks, given, every_rank=every_rank)
    return predicted(found, machine, anyway=anyway, prices=prices), None


def _write(path: Path, prediction: "Prediction", row: dict[str, Any]) -> str:
    if path.name.endswith(_WORKLOAD):
        return write(path, prediction.graph.to_json())
    if path.suffix == ".html":
        from weft.report.step_tables import step_page

        return write(path, step_page(prediction, row))
    if path.suffix == ".csv":
        throughput = row.get("throughput", {})
        return write(path, [flat(row) | flat(row["breakdown"]) | flat(throughput)])
    return write_timelines(path, prediction.timeline)
