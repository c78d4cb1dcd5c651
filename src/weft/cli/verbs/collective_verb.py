"""``weft collective``: the duration of a collective by each algorithm."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On, Ranks, machine_of
from weft.cli.options import Json, Sizes, complete_algorithm, complete_collective, named, to_file
from weft.cli.outputs import output_path, print_json, print_written, write, write_timelines
from weft.cli.progress import track
from weft.errors import UnknownNameError, UsageError, nearest

if TYPE_CHECKING:
    from weft.cli.collective_pricing import CollectiveQuestion, PredictedCollective, PredictedFile
    from weft.cli.running import MeasuredCollective
    from weft.hardware import Platform

    Found = Sequence[PredictedCollective | PredictedFile | MeasuredCollective]

_SCHEDULE = ".schedule.json"
_SUFFIXES = (".json", ".json.gz", ".csv", ".html", _SCHEDULE)


def collective(
    kind: Annotated[str, typer.Argument(metavar="KIND", autocompletion=complete_collective)],
    *,
    size: Sizes = "1KiB,32KiB,1MiB,32MiB,1GiB",
    ranks: Ranks = None,
    on: On = None,
    algorithm: Annotated[
        str,
        typer.Option(
            metavar="A,..",
            help="Algorithms: auto is the fastest that applies, dma-auto the fastest by DMA "
            "engines, all is every one that applies; nccl, nccl-2.27.3 or nccl+int8 is the "
            "measured time of that library.",
            autocompletion=complete_algorithm,
        ),
    ] = "auto",
    run: Annotated[
        bool,
        typer.Option("--run", help="Also run it between processes on this machine."),
    ] = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Draw the queues of the last one over time.")
    ] = False,
    energy: Annotated[
        bool, typer.Option("--energy", help="Show energy of all ranks and power of one.")
    ] = False,
    json: Json = False,
    output: Annotated[
        str | None,
        to_file(
            "Write the timeline of the last one (.json, .json.gz; - is stdout), its "
            "schedule (.schedule.json), all rows (.csv) or a report of both (.html)."
        ),
    ] = None,
) -> int:
    """Predict or run a collective; return 1 if a run gave wrong values."""
    path = output_path(None if output == "-" else output, _SUFFIXES)
    if energy and (run or _is_file(kind)):
        raise UsageError(
            "--energy applies to predictions of named collectives only", "Use --on without --run."
        )
    answers: Found
    if _is_file(kind):
        platform, answers = _of_file(kind, on, ranks, run=run)
    else:
        _check_known(kind)
        platform = _platform(on, ranks, run=run)
        answers = _answers(_questions(kind, size, platform), algorithm, run=run)
    rows = _rows(answers, energy=energy)
    note = _write(path, answers, rows) if path else ""
    if output == "-":
        _print_trace(answers)
    else:
        _show(platform, answers, rows, json=json, timeline=timeline)
    print_written(note, quiet=json)
    wrong = sum(row.get("wrong") or 0 for row in rows)
    return 1 if wrong else 0


def _is_file(kind: str) -> bool:
    return kind.endswith(".json") or Path(kind).is_file()


def _of_file(
    file: str, on: str | None, ranks: int | None, *, run: bool
) -> "tuple[Platform, list[PredictedFile]]":
    """Predict the schedule of a file on its number of ranks."""
    from weft.cli.collective_pricing import PredictedFile
    from weft.schedule import load
    from weft.simulator import simulate

    if run:
        raise UsageError(
            f"{file}: schedule files can be predicted, not run", "Use --on instead of --run."
        )
    schedule = load(file)
    if ranks not in (None, schedule.num_ranks):
        raise UsageError(f"--ranks: {file} is for {schedule.num_ranks} ranks (got {ranks})")
    platform = _platform(on, schedule.num_ranks, run=False)
    return platform, [PredictedFile(schedule, simulate(schedule, platform))]


def _answers(
    questions: list["CollectiveQuestion"], algorithm: str, *, run: bool
) -> "Sequence[PredictedCollective | MeasuredCollective]":
    """Predict or measure every algorithm named; ``all`` adds those that apply, each once."""
    words = tuple(dict.fromkeys(named(algorithm, "--algorithm")))
    if not run:
        return _predicted(questions, words)
    from weft.cli.running import measured

    _can_be_run(words)
    return measured(questions, words)


def _platform(on: str | None, ranks: int | None, *, run: bool) -> "Platform":
    if ranks is not None and ranks < 2:
        raise UsageError(f"--ranks: a collective needs at least 2 ranks (got {ranks})")
    if run:
        from weft.cli.running import here

        return here(on, ranks or 2)
    return machine_of(on, ranks, instead=", or --run")


def _can_be_run(words: Sequence[str]) -> None:
    from weft.cli.library_algorithm import library_algorithm

    for name in words:
        if library_algorithm(name):
            raise UsageError(f"{name} can be predicted, not run", "Use --on without --run.")


def _check_known(kind: str) -> None:
    from weft.collectives import KINDS

    if kind not in KINDS:
        raise UnknownNameError(f"unknown collective {kind!r}", nearest(kind, KINDS))


def _questions(kind: str, sizes: str, platform: "Platform") -> list["CollectiveQuestion"]:
    from weft.cli.collective_pricing import CollectiveQuestion
    from weft.units import parse_sizes

    return [CollectiveQuestion(kind, nbytes, platform) for nbytes in parse_sizes(sizes)]


def _predicted(
    questions: list["CollectiveQuestion"], words: Sequence[str]
) -> list["PredictedCollective"]:
    from weft.cli.collective_pricing import answers

    return [found for q in track(questions, "pricing") for found in answers(q, words)]


def _rows(answers: "Found", *, energy: bool) -> list[dict[str, Any]]:
    """Return every result; energy is available for predictions of named collectives only."""
    return [
        row | (getattr(found, "energy", {}) if energy else {})
        for found in answers
        for row in found.rows
    ]


def _show(
    platform: "Platform",
    answers: "Found",
    rows: list[dict[str, Any]],
    *,
    json: bool,
    timeline: bool,
) -> None:
    if json:
        print_json("collective", platform.name, rows)
        return
    from weft.cli.collective_tables import print_collectives

    print_collectives(platform, rows)
    if timeline and answers:
        from weft.report.gantt import print_gantt

        print()
        for each in answers[-1].timelines:
            print_gantt(each)


def _print_trace(answers: "Found") -> None:
    from weft.trace import perfetto_json

    print(perfetto_json(*answers[-1].timelines).decode(), end="")


def _write(path: Path, answers: "Found", rows: list[dict[str, Any]]) -> str:
    last = answers[-1].timelines
    if path.suffix == ".csv":
        return write(path, rows)
    if path.suffix == ".html":
        from weft.report.collectives_page import collective_page

        return write(path, collective_page(last[0].platform, rows, last))
    if path.name.endswith(_SCHEDULE):
        from weft.schedule import save

        save(answers[-1].schedule, path)
        return f"wrote {path}: predict it with weft collective {path} --on PLATFORM"
    return write_timelines(path, *last)
