"""``weft analyze``: where the time of a traced job goes, and what to do first."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import Json, to_file
from weft.cli.outputs import output_path, print_written, write

if TYPE_CHECKING:
    from weft.trace import Analysis


def analyze(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE..", help="Traces of PyTorch's profiler, one per rank, plain or .gz."
        ),
    ],
    *,
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

    path = output_path(output, (".html", ".json", ".json.gz", ".csv"))
    analysis = analyze_paths(traces)
    note = _write(path, analysis) if path else ""
    if json:
        print(analysis_json(analysis))
    else:
        from weft.cli.analysis_text import print_analysis

        print_analysis(analysis)
    print_written(note, quiet=json)


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
