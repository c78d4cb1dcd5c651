"""``weft whatif``: replays a trace, and predicts its step with changes."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On, machine_of
from weft.cli.options import Json, to_file, words
from weft.cli.outputs import output_path, print_json, print_written, write, write_timelines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from weft.whatif import Answer

_WRITTEN = 4  # timelines per file: more do not fit on a screen


def whatif(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE..",
            help="Traces of a job, one per rank, in any format that weft analyze reads: files, "
            "folders, globs or a .zip.",
        ),
    ],
    *,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="S,..",
            help="Changes: serial, priority, partition, dma, fused, compressed, links*2, ranks*2, "
            "buckets/2, no-waiting, no-straggler, no-input, ..; default: all that apply.",
        ),
    ] = None,
    on: On = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Answer although the replay is inaccurate.")
    ] = False,
    json: Json = False,
    output: Annotated[
        str | None,
        to_file(
            "Write a report (.html), replayed and changed timelines (.json, for Perfetto) or "
            "all rows (.csv)."
        ),
    ] = None,
) -> None:
    """Answer for each job among the traces."""
    from weft.whatif import what_if_jobs

    path = output_path(output, (".html", ".json", ".csv"))
    machine = None if on is None else machine_of(on)
    answers = what_if_jobs(traces, words(strategy), on=machine, anyway=anyway)
    note = _write(path, answers) if path else ""
    if json:
        print_json("whatif", on, [answer.as_row() for answer in answers])
    else:
        from weft.cli.whatif_text import print_answer

        for number, answer in enumerate(answers):
            if number:
                print()
            print_answer(answer)
    print_written(note, quiet=json)


def _write(path: "Path", answers: "Sequence[Answer]") -> str:
    if path.suffix == ".html":
        from weft.report.whatif_page import page

        return write(path, page(answers))
    if path.suffix == ".csv":
        rows: list[dict[str, Any]] = [
            {"file": answer.file, **outcome.as_row()}
            for answer in answers
            for outcome in answer.outcomes
        ]
        return write(path, rows)
    timelines, labels = [], []
    for answer in answers:
        best = sorted(answer.outcomes, key=lambda outcome: outcome.step)[: _WRITTEN - 1]
        for name in ("", *(each.name for each in best)):
            timelines.append(answer.timeline(name))
            labels.append(f"with {name}" if name else "replayed")
    return write_timelines(path, *timelines, labels=labels)
