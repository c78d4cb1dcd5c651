"""``weft c3``: what overlapping a GEMM and a collective is worth, strategy by strategy."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.c3_here import c3_here
from weft.cli.inputs import On, machine_of
from weft.cli.options import Json, named, to_file, words
from weft.cli.outputs import output_path, print_json, write
from weft.cli.progress import track
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.c3 import Pricer, Scenario
    from weft.hardware import Platform


def c3(
    *,
    on: On = None,
    run: Annotated[
        bool, typer.Option("--run", help="Measure on this machine instead of pricing.")
    ] = False,
    gemm: Annotated[
        str | None, typer.Option(metavar="MxNxK,..", help="GEMMs, as 4096x57344x8192.")
    ] = None,
    collective: Annotated[
        str,
        typer.Option(
            metavar="KIND,..",
            help="all_gather, all_to_all, reduce_scatter, all_reduce or broadcast.",
        ),
    ] = "all_gather,all_to_all",
    ratio: Annotated[
        str, typer.Option(metavar="R,..", help="With --run: time of collective / of GEMM.")
    ] = "0.5,1,2",
    ranks: Annotated[int, typer.Option(min=2, metavar="N", help="With --run: how many ranks.")] = 2,
    rounds: Annotated[
        int, typer.Option(min=1, help="With --run: how often each one runs; the best counts.")
    ] = 15,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="S,..", help="Sizes of the collective; as long as the GEMM if left out."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="T", help="Of the GEMM.")] = "bf16",
    strategy: Annotated[
        str | None, typer.Option(metavar="S,..", help="Strategies; all that apply if left out.")
    ] = None,
    units: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Units that a mask takes from the GEMM; the best if left out."
        ),
    ] = None,
    off: Annotated[
        str | None,
        typer.Option(
            metavar="MECHANISM,..",
            help="Without waves, admission, cache, requests, load, staging or launch.",
        ),
    ] = None,
    json: Json = False,
    output: Annotated[
        str | None,
        to_file("Write all rows (.csv) or, of what is priced, a report (.html)."),
    ] = None,
) -> None:
    """Price pairs; without a GEMM the thirty scenarios that weft is judged by."""
    kinds = named(collective, "collective")
    if run:
        given = {"--gemm": gemm, "--strategy": strategy, "--units": units, "--off": off}
        _refuse([name for name, value in given.items() if value is not None])
        path = output_path(output, (".csv",))
        rows = c3_here(kinds, size, _ratios(ratio), num_ranks=ranks, rounds=rounds, json=json)
        if path:
            write(path, rows, quiet=json)
        return
    from weft.c3 import Pricer, advised_rows

    path = output_path(output, (".csv", ".html"))
    platform = _platform(on, words(off))
    pricer = Pricer(platform)
    scenarios = _scenarios(gemm, kinds, size, dtype, pricer)
    rows = [
        row
        for each in track(scenarios, "pricing")
        for row in advised_rows(each, pricer, words(strategy), units)
    ]
    if json:
        print_json("c3", platform.name, rows)
    else:
        from weft.cli.c3_tables import print_pairs

        print_pairs(platform, rows, listed=gemm is None, off=words(off))
    if path:
        _write(path, platform.name, rows, quiet=json)


def _write(path: Path, platform: str, rows: list[dict[str, Any]], *, quiet: bool) -> None:
    if path.suffix == ".csv":
        write(path, rows, quiet=quiet)
        return
    from weft.report.collectives import pairs_page

    write(path, pairs_page(platform, rows), quiet=quiet)


def _refuse(given: list[str]) -> None:
    """Return what a measurement does not listen to: its product and its strategies are its own."""
    if given:
        raise UsageError(f"--run measures pairs of its own, whatever {given[0]} says")


def _ratios(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in words(text))
    except ValueError:
        raise UsageError(
            f"cannot read {text!r} as --ratio", "Use 1 or a list as 0.5,1,2."
        ) from None
    if not found or not all(0 < each < math.inf for each in found):
        raise UsageError(f"--ratio must be above zero, not {text}")
    return found


def _platform(on: str | None, off: tuple[str, ...]) -> "Platform":
    from weft.c3 import without

    found = machine_of(on, instead=", or --run to measure here")
    for name in off:
        found = without(found, name)
    return found


def _scenarios(
    gemm: str | None, kinds: tuple[str, ...], size: str | None, dtype: str, pricer: "Pricer"
) -> "list[Scenario]":
    """Return every GEMM beside every collective in every size, or the list."""
    from weft.c3 import SCENARIOS, parse_gemm, scenarios_of
    from weft.units import parse_sizes

    if gemm is None:
        if size is not None:
            raise UsageError("--size needs a GEMM beside it", "Use --gemm 4096x57344x8192, say.")
        return list(SCENARIOS)
    gemms = [parse_gemm(word, dtype) for word in named(gemm, "GEMM")]
    sizes = parse_sizes(size) if size else None
    return [each for one in gemms for each in scenarios_of(one, kinds, sizes, pricer)]
