"""``weft c3``: how much of communication hides behind computation."""

from typing import Annotated

import typer

from weft.cli.options import Json, numbers, words
from weft.errors import UsageError


def c3(
    *,
    run: Annotated[bool, typer.Option("--run", help="Measure on this machine.")] = False,
    collective: Annotated[
        str, typer.Option(metavar="KIND,..", help="Collectives to put beside the GEMM.")
    ] = "all_gather,all_to_all,all_reduce,broadcast",
    size: Annotated[str, typer.Option(metavar="S", help="Bytes of the collective.")] = "8MiB",
    ratio: Annotated[
        str, typer.Option(metavar="R,..", help="Time of the collectives / time of the GEMM.")
    ] = "0.5,1,2",
    ranks: Annotated[str, typer.Option(metavar="N", help="How many ranks.")] = "2",
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each one runs; the best counts.")
    ] = 15,
    json: Json = False,
) -> None:
    """Measure what --run asks for."""
    from weft.cli.c3_here import c3_here
    from weft.units import parse_size

    if not run:
        raise UsageError("c3 is measured on this machine so far", "Use --run.")
    c3_here(
        words(collective),
        parse_size(size),
        _ratios(ratio),
        num_ranks=numbers(ranks, "--ranks")[0],
        rounds=rounds,
        json=json,
    )


def _ratios(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in words(text))
    except ValueError:
        raise UsageError(
            f"cannot read {text!r} as --ratio", "Use 1 or a list as 0.5,1,2."
        ) from None
    if not found or min(found) <= 0:
        raise UsageError(f"--ratio must be above zero, not {text}")
    return found
