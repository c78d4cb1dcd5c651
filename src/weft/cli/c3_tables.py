"""The tables of ``weft c3``: pairs predicted, and with ``--run`` measured on this machine."""

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from weft.c3 import MECHANISMS, SCENARIOS, STRATEGIES, Pricer, price_scenario, without
from weft.cli.outputs import print_json, track
from weft.hardware import Platform
from weft.report.text import Column, bar, print_table, print_wrapped
from weft.units import format_percent, format_size, format_time, parse_size

if TYPE_CHECKING:
    from weft.local_runs.overlap_measurement import OverlapOutcome

Rows = Sequence[dict[str, Any]]
SHORT = {"concurrent": "conc", "priority": "prio", "partition": "part"}


def print_pairs(platform: Platform, rows: Rows, *, listed: bool, off: tuple[str, ...]) -> None:
    """Print the results; a single pair in full."""
    pairs = [list(group) for _, group in groupby(rows, key=lambda row: row["scenario"])]
    missing = f", without {', '.join(off)}" if off else ""
    if not listed and len(pairs) <= 4:
        for pair in pairs:
            _print_pair(platform, pair, missing)
        return
    _print_list(platform, pairs, missing)
    named = [row["strategy"] for row in pairs[0] if row["strategy"] != "serial"]
    if listed and named and not off:
        print()
        _print_mechanisms(platform, named)


def _print_pair(platform: Platform, rows: Rows, missing: str) -> None:
    first = rows[0]
    title = (
        f"{first['gemm']} with {first['collective']} of {format_size(first['nbytes'])} on "
        f"{platform.name}{missing}, predicted: {first['class']}"
    )
    alone = f"alone {format_time(first['t_compute'])} and {format_time(first['t_comm'])}"
    ideal = first["serial"] / first["ideal"]
    print(f"{title}\n{alone}; serial {format_time(first['serial'])}, ideal {ideal:.2f}x")
    shown = [row | {"bar": bar(row["percent_of_ideal"] / 100)} for row in rows]
    columns = [
        Column("strategy", "strategy", right=False, style="bold"),
        Column("units", "masked"),
        Column("seconds", "time", format_time),
        Column("gemm_slowdown", "GEMM", "{:.2f}x".format),
        Column("speedup", "speedup", "{:.2f}x".format),
        Column("percent_of_ideal", "of ideal", format_percent),
        Column("bar", "", right=False, style="cyan", optional=True),
        Column("why", "a runtime should use it because", right=False),
    ]
    print_table(columns, shown)
    print()


def _print_list(platform: Platform, pairs: Sequence[Rows], missing: str) -> None:
    strategies = [row["strategy"] for row in pairs[0] if row["strategy"] != "serial"]
    lines = [_line(pair) for pair in pairs]
    means = {"scenario": "mean", "ideal": fmean(p[0]["serial"] / p[0]["ideal"] for p in pairs)}
    for name in strategies:
        found = [row["percent_of_ideal"] for p in pairs for row in p if row["strategy"] == name]
        means[name] = f"{fmean(found):.1f} %"
    columns = [
        Column("scenario", "scenario", right=False, style="bold"),
        Column("t_compute", "GEMM", format_time, optional=True),
        Column("t_comm", "collective", format_time, optional=True),
        Column("serial", "serial", format_time),
        Column("class", "class", right=False, optional=True),
        Column("ideal", "ideal", "{:.2f}x".format),
        *(Column(name, _short(name), optional=True) for name in strategies),
        Column("use", "use", right=False, style="green"),
        Column("why", "because", right=False),
    ]
    title = f"Percent of ideal and time on {platform.name}{missing}, predicted"
    print_table(columns, [*lines, means], title=title)
    best = max((row for pair in pairs for row in pair), key=lambda row: row["speedup"])
    print(f"best: {best['speedup']:.2f}x, {best['strategy']} in {best['scenario']}")


def _line(pair: Rows) -> dict[str, Any]:
    first = pair[0]
    line = first | {"ideal": first["serial"] / first["ideal"], "why": "", "use": ""}
    for row in pair:
        units = f" ({row['units']})" if row["units"] is not None else ""
        if row["strategy"] != "serial":
            shown = (
                f"{format_percent(row['percent_of_ideal'])} {format_time(row['seconds'])}{units}"
            )
            line[row["strategy"]] = shown
        if row["chosen"]:
            line |= {"use": row["strategy"], "why": row["why"]}
    return line


def _short(name: str) -> str:
    return "+".join(SHORT.get(part, part) for part in name.split("+"))


def _print_mechanisms(platform: Platform, named: Sequence[str]) -> None:
    """Print the means again, each time without one of the mechanisms."""
    lines = [_means(platform, named) | {"without": "nothing", "why": ""}]
    for each in MECHANISMS:
        found = _means(without(platform, each.name), named)
        lines.append(found | {"without": each.name, "why": each.why})
    columns = [
        Column("without", "without", right=False, style="bold"),
        *(Column(name, _short(name), "{:.1f} %".format) for name in named),
        Column("best", "best", "{:.2f}x".format, optional=True),
        Column("why", "that is", right=False),
    ]
    print_table(columns, lines, title="Mean percent of ideal with one mechanism switched off")


def _means(platform: Platform, strategies: Sequence[str]) -> dict[str, Any]:
    pricer = Pricer(platform)
    rows = [row for each in SCENARIOS for row in price_scenario(each, pricer, strategies)]
    means: dict[str, Any] = {
        name: fmean(row.percent_of_ideal for row in rows if row.choice.name == name)
        for name in STRATEGIES
        if name in strategies
    }
    return means | {"best": max(row.speedup for row in rows)}


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

    nbytes = parse_size(size) if size else SIZE
    found = [
        outcome
        for kind in track(kinds, "measuring c3")
        for outcome in measure(kind, nbytes, ratios, num_ranks, rounds)
    ]
    rows = [_measured_row(outcome) for outcome in found]
    if json:
        print_json("c3", "here", rows)
    else:
        _print_measured(found, rows, num_ranks)
    return rows


def _measured_row(outcome: "OverlapOutcome") -> dict[str, Any]:
    from weft.local_runs.overlap_measurement import figures

    case = outcome.case
    scenario = f"{case.kind} {format_size(case.nbytes)}, comm/gemm {case.ratio:g}"
    row = {"scenario": scenario, "strategy": outcome.strategy, **figures(outcome)}
    return {**row, "seconds": outcome.best.both, "basis": "measured"}


def _print_measured(
    found: "Sequence[OverlapOutcome]", rows: list[dict[str, Any]], num_ranks: int
) -> None:
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
    slower = median(each.slowdown for each in found)
    print_wrapped(
        f"bound: the GEMM takes {slower:.2f}x as long while the other core copies continuously; "
        "the shared memory allows no more than that. Isolated times, and so ideal and serial, use "
        "the same cores as the strategy: concurrent and priority leave threads to the scheduler, "
        "partition and dma keep the GEMM on one core and all communication on the other."
    )
