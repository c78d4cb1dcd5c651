"""``weft plan``: which strategy each pair of a step should use, what that saves, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import Json, On, output_path, words
from weft.cli.predict import Settings, complete_workload, settings_of
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.planner.plan import Limits, Plan

_TRACES = (".json.gz", ".pt.trace.json", ".json", ".et.gz", ".zip")
_SUFFIXES = (".json", ".html", ".csv")


def plan(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD|TRACE", autocompletion=complete_workload)
    ],
    *,
    on: On = None,
    ranks: Annotated[
        int | None, typer.Option(metavar="N", help="How many ranks; all of the platform's.")
    ] = None,
    settings: Settings = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="search|heuristic",
            help="search: pairs by the simulator, chosen by the whole step; heuristic: at once, "
            "from static sizes.",
        ),
    ] = "search",
    budget: Annotated[
        float,
        typer.Option(
            metavar="ERROR", help="The relative error that codecs may make; 0: they lose nothing."
        ),
    ] = 0.0,
    codec: Annotated[
        str | None, typer.Option(metavar="C,..", help="Codecs to look at; all that are known.")
    ] = None,
    engines: Annotated[
        int | None, typer.Option(metavar="N", help="DMA engines of a rank that a plan may use.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of a rank that a plan may use.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show what was not chosen too, and why.")
    ] = False,
    json: Json = False,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the plan (.json, for weft.torch.apply), a report (.html) or rows (.csv).",
        ),
    ] = None,
) -> None:
    """Plan one step."""
    path = output_path(output, _SUFFIXES)
    limits = _limits(budget, words(codec), engines, memory)
    if _is_trace(workload):
        found = _of_trace(workload, on, limits, settings)
    else:
        found = _of_workload(workload, on, ranks, settings, mode, limits)
    if json:
        from weft.report.results import results_json

        rows = [choice.as_row() for choice in found.choices]
        totals = {"workload": found.workload, "ranks": found.num_ranks}
        totals |= {"baseline": found.baseline, "planned": found.planned}
        totals |= {"low": found.low, "high": found.high, "gain": found.gain}
        totals |= {"mode": found.mode, "notes": list(found.notes), "basis": "predicted"}
        print(results_json("plan", found.platform, rows, **totals))
    else:
        from weft.report.plan import print_plan

        print_plan(found, every=every)
    if path:
        _write(path, found, quiet=json)


def _limits(
    budget: float, codecs: tuple[str, ...], engines: int | None, memory: str | None
) -> "Limits":
    from weft.planner.plan import Limits
    from weft.units import parse_size

    room = parse_size(memory) if memory else None
    return Limits(error=budget, codecs=codecs, engines=engines, memory=room)


def _is_trace(workload: str) -> bool:
    """Tell a trace from a workload file, which says so in its name."""
    path = Path(workload)
    return path.name.endswith(_TRACES) and not path.name.endswith(".workload.json")


def _of_trace(path: str, on: str | None, limits: "Limits", settings: list[str] | None) -> "Plan":
    from weft.hardware import platform
    from weft.trace import read
    from weft.whatif.planned import plan_trace

    if settings:
        raise UsageError(f"{path} is a recorded step: --set {settings[0]} is too late")
    return plan_trace(read(path), on=None if on is None else platform(on), limits=limits)


def _of_workload(
    workload: str,
    on: str | None,
    ranks: int | None,
    settings: list[str] | None,
    mode: str,
    limits: "Limits",
) -> "Plan":
    from dataclasses import replace

    from weft.hardware import platform
    from weft.planner.planning import plan as planned
    from weft.planner.spreading import spread

    if on is None:
        raise UsageError("which hardware? --on is missing", "Use --on h100-8 (see weft platforms).")
    machine = platform(on, num_ranks=ranks)
    found, added = spread(workload, machine, settings_of(settings))
    made = planned(found, machine, mode=mode, limits=limits)
    if not added:
        return made
    told = " ".join(f"--set {key}={value}" for key, value in added.items())
    return replace(made, notes=(f"as it stands it does not fit: taken with {told}", *made.notes))


def _write(path: Path, plan: "Plan", *, quiet: bool) -> None:
    if path.suffix == ".html":
        from weft.report.plan import plan_page

        path.write_text(plan_page(plan), encoding="utf-8")
    elif path.suffix == ".csv":
        from weft.report.results import results_csv

        rows = [
            {k: v for k, v in choice.as_row().items() if not isinstance(v, (dict, list))}
            for choice in plan.choices
        ]
        path.write_text(results_csv(rows), encoding="utf-8")
    else:
        path.write_bytes(plan.to_json())
    if not quiet:
        print(f"\nwrote {path}")
