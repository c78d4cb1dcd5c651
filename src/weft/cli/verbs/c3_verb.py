"""``weft c3``: the benefit of overlapping a GEMM with a collective, by strategy."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On, machine_of
from weft.cli.options import Json, named, refuse_options, to_file, words
from weft.cli.outputs import output_path, print_json, print_written, track, write
from weft.errors import UsageError
from weft.units import parse_sizes

if TYPE_CHECKING:
    from weft.c3 import Pricer, Scenario
    from weft.hardware import Platform


# Which pairs.
Gemms = Annotated[
    str | None, typer.Option("--gemm", metavar="MxNxK,..", help="GEMMs, such as 4096x57344x8192.")
]
Collectives = Annotated[
    str,
    typer.Option(
        "--collective",
        metavar="KIND,..",
        help="all_gather, all_to_all, reduce_scatter, all_reduce or broadcast.",
    ),
]
CommSizes = Annotated[
    str | None,
    typer.Option(
        "--size", metavar="S,..", help="Sizes of the collective; default: as long as the GEMM."
    ),
]
GemmDtype = Annotated[str, typer.Option("--dtype", metavar="T", help="Dtype of the GEMM.")]
TileOrder = Annotated[
    str | None,
    typer.Option(
        "--tiles",
        metavar="SCHEDULE",
        help="Tiles of the GEMM: static (the library's grid), stealing (persistent workgroups "
        "take them from a counter) or lists (persistent, dealt beforehand).",
    ),
]

# How they overlap.
Strategies = Annotated[
    str | None,
    typer.Option("--strategy", metavar="S,..", help="Strategies; default: all that apply."),
]
MaskUnits = Annotated[
    int | None,
    typer.Option(
        "--units",
        metavar="N",
        help="Compute units that a mask takes from the GEMM; default: the best.",
    ),
]
Off = Annotated[
    str | None,
    typer.Option(
        "--off",
        metavar="MECHANISM,..",
        help="Without waves, admission, cache, requests, load, clock, staging or launch.",
    ),
]

# How they are measured here.
Run = Annotated[bool, typer.Option("--run", help="Measure on this machine instead of predicting.")]
Ratios = Annotated[
    str,
    typer.Option("--ratio", metavar="R,..", help="With --run: collective time / GEMM time."),
]
RunRanks = Annotated[
    int, typer.Option("--ranks", min=2, metavar="N", help="With --run: number of ranks.")
]
RunRounds = Annotated[
    int, typer.Option("--rounds", min=1, help="With --run: repetitions; the best counts.")
]


def c3(
    *,
    on: On = None,
    run: Run = False,
    gemm: Gemms = None,
    collective: Collectives = "all_gather,all_to_all",
    ratio: Ratios = "0.5,1,2",
    ranks: RunRanks = 2,
    rounds: RunRounds = 15,
    size: CommSizes = None,
    dtype: GemmDtype = "bf16",
    tiles: TileOrder = None,
    strategy: Strategies = None,
    units: MaskUnits = None,
    off: Off = None,
    json: Json = False,
    output: Annotated[
        str | None, to_file("Write all rows (.csv) or, of what is priced, a report (.html).")
    ] = None,
) -> None:
    """Predict pairs; without a GEMM the thirty published scenarios."""
    kinds = named(collective, "--collective")
    if run:
        # It has its own GEMMs and strategies.
        unused = {"--gemm": gemm, "--tiles": tiles, "--strategy": strategy, "--units": units}
        refuse_options(unused | {"--off": off}, "--run, which measures its own pairs")
        path = output_path(output, (".csv",))
        from weft.cli.c3_tables import c3_here

        rows = c3_here(kinds, size, _ratios(ratio), num_ranks=ranks, rounds=rounds, json=json)
        print_written(write(path, rows) if path else "", quiet=json)
        return
    from weft.c3 import Pricer, advised_rows

    path = output_path(output, (".csv", ".html"))
    platform = _platform(on, words(off))
    pricer = Pricer(platform)
    scenarios = _scenarios(gemm, kinds, size, (dtype, tiles or "static"), pricer)
    rows = [
        row
        for each in track(scenarios, "pricing")
        for row in advised_rows(each, pricer, words(strategy), units, in_full=len(scenarios) <= 4)
    ]
    note = _write(path, platform.name, rows) if path else ""
    if json:
        print_json("c3", platform.name, rows)
    else:
        from weft.cli.c3_tables import print_pairs

        print_pairs(platform, rows, listed=gemm is None, off=words(off))
    print_written(note, quiet=json)


def _write(path: Path, platform: str, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".csv":
        return write(path, rows)
    from weft.report.collectives_page import pairs_page

    return write(path, pairs_page(platform, rows))


def _ratios(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in words(text))
    except ValueError:
        raise UsageError(
            f"--ratio: cannot parse {text!r}", "Use a number or a list such as 0.5,1,2."
        ) from None
    if not found or not all(0 < each < math.inf for each in found):
        raise UsageError(f"--ratio must be > 0 (got {text})")
    return found


def _platform(on: str | None, off: tuple[str, ...]) -> "Platform":
    from weft.c3 import without

    found = machine_of(on, instead=", or --run to measure here")
    for name in off:
        found = without(found, name)
    return found


def _scenarios(
    gemm: str | None,
    kinds: tuple[str, ...],
    size: str | None,
    kernel: tuple[str, str],
    pricer: "Pricer",
) -> "list[Scenario]":
    """Return every combination of GEMM, collective and size, or the published list."""
    from weft.c3 import SCENARIOS, parse_gemm, scenarios_of

    if gemm is None:
        if size is not None:
            raise UsageError("--size needs --gemm", "For example --gemm 4096x57344x8192.")
        if kernel[1] != "static":
            raise UsageError("--tiles needs --gemm", "For example --gemm 8192x8192x8192.")
        return list(SCENARIOS)
    gemms = [parse_gemm(word, *kernel) for word in named(gemm, "--gemm")]
    sizes = parse_sizes(size) if size else None
    return [each for one in gemms for each in scenarios_of(one, kinds, sizes, pricer)]
