"""``weft export``: what traces show of a machine, in the form of other programs."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from weft.cli.options import Json, to_file
from weft.cli.outputs import output_path, print_json, print_written, reported, write
from weft.errors import FormatError, UnknownNameError
from weft.report.text import Column, print_table, print_wrapped
from weft.units import format_size, format_time


def export(
    format: Annotated[  # noqa: A002 - as the command line names it
        str, typer.Argument(metavar="FORMAT", help="inductor: collectives for its scheduler.")
    ],
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE..", help="Traces of a job, best of all ranks; as weft analyze takes."
        ),
    ],
    *,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="NODE", help="The machine of traces that name no device: h100-8."
        ),
    ] = None,
    json: Json = False,
    output: Annotated[str | None, to_file("Write the profile that torch loads (.json).")] = None,
) -> None:
    """Write the collective estimates of recorded ranks."""
    from weft.trace import analyze
    from weft.trace.inductor_profile import collective_estimates, inductor_profile

    if format != "inductor":
        raise UnknownNameError(f"FORMAT: unknown format {format!r}", "Use inductor.")
    path = output_path(output, (".json",))
    with reported("reading traces") as progress:
        analysis = analyze(traces, on=on or "", progress=progress)
    estimates = collective_estimates(analysis)
    if not estimates:
        raise FormatError(
            f"{traces[0]}: no collective with known size, dtype and group",
            "Record with PyTorch 2.4 or later (profiler or flight recorder) on several ranks.",
        )
    note = write(path, inductor_profile(estimates)) if path else ""
    rows = [{**asdict(each), "num_ranks": len(each.ranks)} for each in estimates]
    if json:
        print_json("export", None, rows, basis=estimates[0].basis)
        return
    _show(rows, num_recorded=sum(len(rank.collectives) for rank in analysis.ranks))
    print_written(note)
    if path:
        print(
            "torch._inductor.config.aten_distributed_optimizations."
            f"profile_guided_estimations_profile_path = {str(path)!r}"
        )


def _show(rows: list[dict[str, Any]], num_recorded: int) -> None:
    used = sum(row["count"] for row in rows)
    print_wrapped(
        f"{len(rows)} estimates from {used} of {num_recorded} recorded collectives: "
        "only the time in which bytes move counts"
    )
    print()
    columns = [
        Column("kind", "collective", right=False, style="bold"),
        Column("num_ranks", "ranks"),
        Column("nbytes", "size", format_size),
        Column("dtype", "dtype", right=False),
        Column("count", "times"),
        Column("moving", "moving", format_time),
        Column("seconds", "with waiting", format_time),
        Column("basis", "basis", right=False),
    ]
    print_table(columns, rows)
