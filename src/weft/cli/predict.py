"""``weft predict``: how long one step takes, and where the time goes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.inputs import (
    On,
    Ranks,
    Settings,
    complete_workload,
    machine_of,
    recorded,
    settings_of,
)
from weft.cli.options import Json, to_file
from weft.cli.outputs import flat, output_path, print_json, write, write_timelines

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.planner.predict import Prediction

_WORKLOAD = ".workload.json"
_SUFFIXES = (".json", ".json.gz", ".html", ".csv")


def predict(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", autocompletion=complete_workload)],
    *,
    on: On = None,
    ranks: Ranks = None,
    settings: Settings = None,
    every_rank: Annotated[
        bool,
        typer.Option("--every-rank", help="Capture each rank: they do not all do the same."),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Predict a step that does not fit into memory too, or from a replay that is off.",
        ),
    ] = False,
    library: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose collectives: nccl, or here gloo or weft."),
    ] = None,
    json: Json = False,
    output: Annotated[
        str | None,
        to_file(
            "Write the timeline (.json, .json.gz for Perfetto), a report (.html), the row "
            "(.csv) or the workload itself (.workload.json)."
        ),
    ] = None,
) -> None:
    """Predict one step."""
    path, given = output_path(output, _SUFFIXES), settings_of(settings)
    machine = machine_of(on, ranks)
    trace = recorded(workload, given, ranks)
    if trace is not None:
        from weft.whatif import predict_trace

        prediction = predict_trace(trace, machine, anyway=anyway)
    else:
        prediction = _of_workload(
            workload, machine, given, library=library, every_rank=every_rank, anyway=anyway
        )
    if json:
        print_json("predict", machine.name, [prediction.row()])
    else:
        from weft.report.step import print_step

        print_step(prediction)
    if path:
        _write(path, prediction, quiet=json)


def _of_workload(
    spec: str,
    machine: "Platform",
    given: dict[str, str],
    *,
    library: str | None,
    every_rank: bool,
    anyway: bool,
) -> "Prediction":
    from weft.models.find import find_workload
    from weft.planner.predict import predict as predicted
    from weft.planner.prices import Prices, default_library, known_library

    found = find_workload(spec, machine.num_ranks, given, every_rank=every_rank)
    prices = Prices(machine, library=known_library(machine, library or default_library(machine)))
    return predicted(found, machine, anyway=anyway, prices=prices)


def _write(path: Path, prediction: "Prediction", *, quiet: bool) -> None:
    if path.name.endswith(_WORKLOAD):
        write(path, prediction.workload.to_json(), quiet=quiet)
    elif path.suffix == ".html":
        from weft.report.step import step_page

        write(path, step_page(prediction), quiet=quiet)
    elif path.suffix == ".csv":
        row = prediction.row()
        write(path, [flat(row) | flat(row["breakdown"])], quiet=quiet)
    else:
        write_timelines(path, prediction.timeline, quiet=quiet)
