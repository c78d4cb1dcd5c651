"""``weft predict``: how long one step takes, and where the time goes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import Json, On, output_path
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.planner.predict import Prediction

_WORKLOAD = ".workload.json"
_RECORDED = (".json", ".json.gz", ".csv", ".et")
_BEGINNING = 200  # bytes of a file in which a workload says that it is one
_SUFFIXES = (".json", ".json.gz", ".html", ".csv")
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="Change a setting of the workload, as batch=4096."),
]


def complete_workload(incomplete: str) -> list[str]:
    """Complete the name of a workload."""
    from weft.workload.named import workload_names

    return [name for name in workload_names() if name.startswith(incomplete)]


def predict(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", autocompletion=complete_workload)],
    *,
    on: On = None,
    ranks: Annotated[
        int | None, typer.Option(metavar="N", help="How many ranks; all of the platform's.")
    ] = None,
    settings: Settings = None,
    every_rank: Annotated[
        bool,
        typer.Option("--every-rank", help="Capture each rank: they do not all do the same."),
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Predict a step that does not fit into memory too.")
    ] = False,
    library: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose collectives: nccl, or here gloo or weft."),
    ] = None,
    json: Json = False,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the timeline (.json, .json.gz for Perfetto), a report (.html), the row "
            "(.csv) or the workload itself (.workload.json).",
        ),
    ] = None,
) -> None:
    """Predict one step."""
    from weft.hardware import platform

    if on is None:
        raise UsageError("which hardware? --on is missing", "Use --on h100-8 (see weft platforms).")
    path = output_path(output, _SUFFIXES)
    machine = platform(on, num_ranks=ranks)
    given = settings_of(settings)
    if _is_trace(workload):
        prediction = _of_trace(workload, machine, given, ranks)
    else:
        prediction = _of_workload(
            workload, machine, given, library=library, every_rank=every_rank, anyway=anyway
        )
    if json:
        from weft.report.results import results_json

        print(results_json("predict", machine.name, [prediction.row()]))
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
    from weft.planner.predict import predict as predicted
    from weft.planner.prices import Prices, default_library, known_library
    from weft.workload.find import find_workload

    found = find_workload(spec, machine.num_ranks, given, every_rank=every_rank)
    prices = Prices(machine, library=known_library(machine, library or default_library(machine)))
    return predicted(found, machine, anyway=anyway, prices=prices)


def _is_trace(spec: str) -> bool:
    """Tell a recorded trace from a workload file, which says what it is at its beginning."""
    path = Path(spec)
    if not spec.endswith(_RECORDED) or not path.is_file():
        return False
    with path.open("rb") as file:
        return b"weft_workload" not in file.read(_BEGINNING)


def _of_trace(
    spec: str, machine: "Platform", given: dict[str, str], ranks: int | None
) -> "Prediction":
    from weft.trace import read
    from weft.whatif import predict_trace

    if given:
        raise UsageError(
            f"{spec} is a recorded trace: --set {next(iter(given))} changes nothing in it",
            "Use weft whatif to change a recorded step.",
        )
    if ranks is not None:
        raise UsageError(
            f"{spec} is one rank of the job it was recorded in: --ranks changes nothing in it",
            "Leave --ranks out, or try weft whatif --strategy 'ranks*2'.",
        )
    return predict_trace(read(spec), machine)


def settings_of(given: list[str] | None) -> dict[str, str]:
    """Read ``key=value`` words."""
    found = {}
    for word in given or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"cannot read --set {word!r}", "Use --set key=value, as batch=4096.")
        found[key.strip()] = value.strip()
    return found


def _write(path: Path, prediction: "Prediction", *, quiet: bool) -> None:
    hint = ""
    if path.name.endswith(_WORKLOAD):
        path.write_bytes(prediction.workload.to_json())
    elif path.suffix == ".html":
        from weft.report.step import step_page

        path.write_text(step_page(prediction), encoding="utf-8")
    elif path.suffix == ".csv":
        from weft.report.results import results_csv

        path.write_text(results_csv([_flat(prediction.row())]), encoding="utf-8")
    else:
        from weft.trace import write_perfetto

        write_perfetto(path, prediction.timeline)
        hint = ": open it in ui.perfetto.dev"
    if not quiet:
        print(f"\nwrote {path}{hint}")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Keep what fits into a line of a table."""
    parts = {k: v for k, v in row["breakdown"].items() if isinstance(v, float)}
    return {k: v for k, v in row.items() if not isinstance(v, (dict, list))} | parts
