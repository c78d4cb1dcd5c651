"""``weft collective``: the duration of a collective by each algorithm."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On, Ranks, machine_of
from weft.cli.options import Json, Sizes, complete_algorithm, complete_collective, named, to_file
from weft.cli.outputs import output_path, print_json, print_written, track, write, write_timelines
from weft.errors import UnknownNameError, UsageError, nearest
from weft.hardware import Platform
from weft.report.text import Column, bar, print_table, print_wrapped
from weft.units import format_rate, format_size, format_time, parse_sizes

if TYPE_CHECKING:
    from weft.cli.collective_pricing import CollectiveQuestion, PredictedCollective, PredictedFile
    from weft.cli.running import MeasuredCollective

    Found = Sequence[PredictedCollective | PredictedFile | MeasuredCollective]

_SCHEDULE = ".schedule.json"
_SUFFIXES = (".json", ".json.gz", ".csv", ".html", _SCHEDULE)


AlgorithmNames = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        metavar="A,..",
        help="Algorithms: nccl, nccl-2.27.3 or nccl+int8 is the measured time of that library; "
        "auto is the fastest of weft's own schedules that apply, dma-auto the fastest by DMA "
        "engines, all is every one that applies. Default: the platform's library where it was "
        "measured, then auto.",
        autocompletion=complete_algorithm,
    ),
]
AlsoRun = Annotated[
    bool, typer.Option("--run", help="Also run it between processes on this machine.")
]
DrawTimeline = Annotated[
    bool, typer.Option("--timeline", help="Draw the queues of the last one over time.")
]
ShowEnergy = Annotated[
    bool, typer.Option("--energy", help="Show energy of all ranks and power of one.")
]
CollectiveFile = Annotated[
    str | None,
    to_file(
        "Write the timeline of the last one (.json, .json.gz; - is stdout), its "
        "schedule (.schedule.json), all rows (.csv) or a report of both (.html)."
    ),
]


def collective(
    kind: Annotated[str, typer.Argument(metavar="KIND", autocompletion=complete_collective)],
    *,
    size: Sizes = "1KiB,32KiB,1MiB,32MiB,1GiB",
    ranks: Ranks = None,
    on: On = None,
    algorithm: AlgorithmNames = None,
    run: AlsoRun = False,
    timeline: DrawTimeline = False,
    energy: ShowEnergy = False,
    json: Json = False,
    output: CollectiveFile = None,
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
    # Energy is known for predictions of named collectives only.
    rows = [
        row | (getattr(found, "energy", {}) if energy else {})
        for found in answers
        for row in found.rows
    ]
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
    questions: list["CollectiveQuestion"], algorithm: str | None, *, run: bool
) -> "Sequence[PredictedCollective | MeasuredCollective]":
    """Predict or measure every algorithm named; ``all`` adds those that apply, each once.

    Without a name, predict the library of the platform, as a job would use it, and ``auto``.
    """
    words = tuple(dict.fromkeys(named("auto" if algorithm is None else algorithm, "--algorithm")))
    if not run:
        from weft.cli.collective_pricing import answers, library_seconds

        def asked(question: "CollectiveQuestion") -> tuple[str, ...]:
            library = library_seconds(question) if algorithm is None else None
            return words if library is None else (library[0], *words)

        return [found for q in track(questions, "pricing") for found in answers(q, asked(q))]
    from weft.cli.collective_pricing import library_algorithm
    from weft.cli.running import measured

    for name in words:
        if library_algorithm(name):
            raise UsageError(f"{name} can be predicted, not run", "Use --on without --run.")
    return measured(questions, words)


def _platform(on: str | None, ranks: int | None, *, run: bool) -> "Platform":
    if ranks is not None and ranks < 2:
        raise UsageError(f"--ranks: a collective needs at least 2 ranks (got {ranks})")
    if run:
        from weft.cli.running import here

        return here(on, ranks or 2)
    return machine_of(on, ranks, instead=", or --run")


def _check_known(kind: str) -> None:
    from weft.collectives import KINDS

    if kind not in KINDS:
        raise UnknownNameError(f"unknown collective {kind!r}", nearest(kind, KINDS))


def _questions(kind: str, sizes: str, platform: "Platform") -> list["CollectiveQuestion"]:
    from weft.cli.collective_pricing import CollectiveQuestion

    return [CollectiveQuestion(kind, nbytes, platform) for nbytes in parse_sizes(sizes)]


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
    print_collectives(platform, rows)
    _print_whose(answers)
    if timeline and answers:
        from weft.report.gantt import print_gantt

        print()
        for each in answers[-1].timelines:
            print_gantt(each)


def _print_whose(answers: "Found") -> None:
    """Print which rows a job on the platform will see and which are schedules of weft."""
    from weft.cli.collective_pricing import PredictedCollective, library_algorithm, library_seconds

    found = [each for each in answers if isinstance(each, PredictedCollective)]
    own = [each for each in found if not library_algorithm(each.asked)]
    if not own or not (price := library_seconds(own[-1].question)):
        return
    (name, seconds), last = price, own[-1].question
    if len(own) < len(found):
        libraries = dict.fromkeys(each.asked for each in found if each not in own)
        uses = ", as predict and plan price it" if name in libraries else ""
        print_wrapped(
            f"{', '.join(libraries)}: the library of a job, fitted to measurements{uses}; the "
            "others are schedules of weft, simulated"
        )
    else:
        print_wrapped(
            f"these are schedules of weft, simulated; {name} takes {format_time(seconds)} for "
            f"{format_size(last.nbytes)}: --algorithm {name},auto"
        )


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


_ENERGY = (Column("joules", "joules", "{:.3g}".format), Column("watts", "watts", "{:.0f}".format))


def print_collectives(platform: Platform, rows: Sequence[dict[str, Any]]) -> None:
    """Print the results, the answer first."""
    if not rows:
        return
    if any(row["basis"] == "measured" for row in rows):
        _print_measured(platform, rows)
    else:
        _print_predicted(platform, rows)


def _print_predicted(platform: Platform, rows: Sequence[dict[str, Any]]) -> None:
    first = rows[0]
    best = max((row["busbw"] or 0.0 for row in rows), default=0.0) or 1.0
    shown = [_readable(row) | {"bar": bar((row["busbw"] or 0.0) / best)} for row in rows]
    columns = [
        Column("nbytes", "size", format_size),
        Column("algorithm", "algorithm", right=False, style="bold"),
        Column("seconds", "time", format_time),
        Column("algbw", "algbw", format_rate),
        Column("busbw", "busbw", format_rate),
        *(_ENERGY if "joules" in first else ()),
        Column("bar", "", right=False, style="cyan"),
    ]
    title = f"{first['collective']}, {first['ranks']} ranks on {platform.name}, predicted"
    print_table(columns, shown, title=title)
    for note in _notes(rows):
        print_wrapped(note)


def _notes(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield notes about rows once, with the sizes they apply to."""
    noted: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for note in filter(None, row.get("note", "").split("; ")):
            noted.setdefault((row["algorithm"], note), []).append(format_size(row["nbytes"]))
    for (algorithm, note), sizes in noted.items():
        every = len(sizes) == sum(row["algorithm"] == algorithm for row in rows)
        yield f"{algorithm}{'' if every else ' of ' + ', '.join(sizes)}: {note}"


def _print_measured(platform: Platform, rows: Sequence[dict[str, Any]]) -> None:
    """Print the two rows of a case, measured and predicted, in one line."""
    measured = [row for row in rows if row["basis"] == "measured"]
    predicted = [row["seconds"] for row in rows if row["basis"] == "predicted"]
    first = rows[0]
    shown = [
        _readable(row) | {"predicted": then, "ratio": then / row["seconds"]}
        for row, then in zip(measured, predicted, strict=True)
    ]
    columns = [
        Column("nbytes", "size", format_size),
        Column("algorithm", "algorithm", right=False, style="bold"),
        Column("seconds", "measured", format_time),
        Column("predicted", "predicted", format_time),
        Column("ratio", "pred/meas", "{:.2f}".format),
        Column("algbw", "algbw", format_rate),
        Column("busbw", "busbw", format_rate),
        Column("wrong", "#wrong"),
    ]
    title = (
        f"{first['collective']}, {first['ranks']} ranks here, measured and predicted "
        f"on {platform.name}"
    )
    print_table(columns, shown, title=title)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    chosen = row.get("chosen")
    return row | ({"algorithm": f"{row['algorithm']}: {chosen}"} if chosen else {})
