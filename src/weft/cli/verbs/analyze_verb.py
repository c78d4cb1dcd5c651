"""``weft analyze``: where the time of a traced job goes, and what to do first."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import Json, to_file
from weft.cli.outputs import output_path, print_written, reported, write

if TYPE_CHECKING:
    from weft.trace import Analysis
    from weft.trace.analysis.rank_digest import Progress


def analyze(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE..",
            help="Traces of a job: files, folders, globs, a .zip, or - for stdin. PyTorch's "
            "profiler (.json, .gz), Nsight Systems (.sqlite), rocprofv3, flight recorder, Chakra.",
        ),
    ],
    *,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against", metavar="TRACE..", help="Traces of another run: what changed, and why."
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="NODE", help="The machine of traces that name no device: h100-8."
        ),
    ] = None,
    json: Json = False,
    output: Annotated[
        str | None,
        to_file(
            "Write a report (.html), the annotated timeline for Perfetto (.json, .json.gz) or "
            "steps and collectives (.csv)."
        ),
    ] = None,
) -> None:
    """Read the traces of a job and print where its steps go."""
    from weft.whatif import analyze as analyze_paths

    if against:
        path = output_path(output, (".html", ".csv"))
        with reported("reading traces") as progress:
            _compare(traces, against, on or "", path, progress, json=json)
        return
    path = output_path(output, (".html", ".json", ".json.gz", ".csv"))
    with reported("reading traces") as progress:
        analysis = analyze_paths(traces, on=on or "", progress=progress)
    note = _write(path, analysis) if path else ""
    if json:
        print(analysis_json(analysis))
    else:
        from weft.cli.analysis_text import print_analysis

        print_analysis(analysis)
    print_written(note, quiet=json)


def _compare(
    traces: list[str],
    against: list[str],
    on: str,
    path: Path | None,
    progress: "Progress | None",
    *,
    json: bool,
) -> None:
    """Compare the slowest ranks of two jobs, step by step."""
    from weft.cli.verbs.diff_verb import show_diff
    from weft.timeline.step_diff import diff_sides
    from weft.trace import analyze as analyze_files
    from weft.trace.analysis.trace_profile import side_of

    before, after = (
        side_of(analyze_files(named, on=on, progress=progress), _label(named))
        for named in (traces, against)
    )
    show_diff(diff_sides(before, after), path, json=json, verb="analyze")


def _label(named: list[str]) -> str:
    """Return the name of a side: its file, or the folder of its files."""
    if len(named) == 1:
        return named[0]
    folders = {str(Path(name).parent) for name in named}
    return folders.pop() if len(folders) == 1 else f"{named[0]} and {len(named) - 1} more"


def analysis_json(analysis: "Analysis") -> str:
    """Return an analysis as one JSON object."""
    from dataclasses import asdict

    from weft.report.results import results_json

    return results_json(
        "analyze",
        None,
        list(analysis.rows()),
        basis="measured",
        step_time=analysis.step_time,
        world_size=analysis.world_size,
        aligned_within=analysis.aligned_within,
        stragglers=[asdict(each) for each in analysis.stragglers],
        advice=[asdict(each) for each in analysis.advice],
        notes=analysis.notes,
        jobs=[
            {
                "name": each.name,
                "files": [rank.file for rank in each.ranks],
                "step_time": each.step_time,
                "advice": [asdict(one) for one in each.advice],
            }
            for each in analysis.jobs
        ],
    )


def _write(path: Path, analysis: "Analysis") -> str:
    """Write the format that the suffix selects."""
    if path.suffix == ".html":
        from weft.report.analysis_page import page

        return write(path, page(analysis))
    if path.suffix == ".csv":
        return write(path, _lines(analysis))
    from weft.trace.annotated import write_annotated

    write_annotated(path, analysis)
    return f"wrote {path}"


def _lines(analysis: "Analysis") -> list[dict[str, Any]]:
    """Return one line per step, or one per rank for files without steps."""
    return analysis.step_rows() or [
        {"file": rank.file, "rank": rank.rank, "span": rank.span} for rank in analysis.ranks
    ]
