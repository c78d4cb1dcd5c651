"""``weft c3 --run``: percent of ideal overlap, measured on this machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.cli.outputs import print_json
from weft.cli.progress import track

if TYPE_CHECKING:
    from weft.local_runs.overlap_measurement import OverlapOutcome


def c3_here(
    kinds: tuple[str, ...],
    size: str | None,
    ratios: tuple[float, ...],
    *,
    num_ranks: int,
    rounds: int,
    json: bool,
) -> list[dict[str, Any]]:
    """Measure, print and return the rows."""
    from weft.local_runs.overlap_measurement import SIZE, measure
    from weft.units import parse_size

    nbytes = parse_size(size) if size else SIZE
    found = [
        outcome
        for kind in track(kinds, "measuring c3")
        for outcome in measure(kind, nbytes, ratios, num_ranks, rounds)
    ]
    rows = [_row(outcome) for outcome in found]
    if json:
        print_json("c3", "here", rows)
    else:
        _print(found, rows, num_ranks)
    return rows


def _row(outcome: "OverlapOutcome") -> dict[str, Any]:
    from weft.local_runs.overlap_measurement import figures
    from weft.units import format_size

    case = outcome.case
    scenario = f"{case.kind} {format_size(case.nbytes)}, comm/gemm {case.ratio:g}"
    row = {"scenario": scenario, "strategy": outcome.strategy, **figures(outcome)}
    return {**row, "seconds": outcome.best.both, "basis": "measured"}


def _print(found: "Sequence[OverlapOutcome]", rows: list[dict[str, Any]], num_ranks: int) -> None:
    from weft.report.text import Column, bar, print_table
    from weft.units import format_time

    columns = [
        Column("scenario", "scenario", right=False),
        Column("strategy", "strategy", right=False, style="bold"),
        Column("t_compute", "gemm", format_time),
        Column("t_comm", "comm", format_time),
        Column("ideal", "ideal", format_time),
        Column("serial", "serial", format_time),
        Column("seconds", "at once", format_time),
        Column("speedup", "speedup", "{:.2f}x".format),
        Column("percent_of_ideal", "% of ideal", "{:.0f}".format),
        Column("bound", "bound", "{:.0f}".format),
        Column("bar", "", right=False, style="cyan"),
    ]
    shown = [row | {"bar": bar(row["percent_of_ideal"] / 100)} for row in rows]
    title = f"GEMM of rank 0 with a collective of {num_ranks} ranks here, one thread, measured"
    print_table(columns, shown, title=title)
    _explain(found)


def _explain(found: "Sequence[OverlapOutcome]") -> None:
    from statistics import median

    slower = median(each.slowdown for each in found)
    print(
        f"\
bound: the GEMM takes {slower:.2f}x as long while the other core copies continuously; the "
        "shared memory\
allows no more than that. Isolated times, and so ideal and serial, use the same "
        "cores as the\
strategy: concurrent and priority leave threads to the scheduler, partition and "
        "dma keep the GEMM on one core\
and all communication on the other."
    )
