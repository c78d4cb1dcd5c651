"""``weft bench``: weft and its peers, the same work in the same run. Needs a checkout."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from weft.cli.options import Json, numbers, to_file, words
from weft.cli.outputs import output_path
from weft.errors import UsageError
from weft.units import parse_rate, parse_sizes


def checkout_module(name: str) -> ModuleType:
    """Return a module such as ``benchmarks.command`` of the checkout that weft runs from.

    An editable installation knows its checkout; otherwise the current folder may be one.
    """
    package = name.partition(".")[0]
    for root in (Path(__file__).parents[4], Path.cwd()):
        if (root / package / "__init__.py").is_file() and (root / "src" / "weft").is_dir():
            if str(root) not in sys.path:
                sys.path.append(str(root))
            break
    if find_spec(package) is None:
        raise UsageError(
            f"{package} is not installed with weft",
            f"Clone the repository and run python -m {package} there.",
        )
    return import_module(name)


def complete_bench(incomplete: str) -> list[str]:
    """Complete the name of a benchmark."""
    names = checkout_module("benchmarks").questions()
    return [name for name in names if name.startswith(incomplete)]


def bench(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The benchmark to run; default: list them.",
            autocompletion=complete_bench,
            show_default=False,
        ),
    ] = None,
    *,
    against: Annotated[
        str | None, typer.Option(metavar="PEER,..", help="Peers to compare with.")
    ] = None,
    ranks: Annotated[str | None, typer.Option(metavar="N,..", help="Numbers of ranks.")] = None,
    size: Annotated[str | None, typer.Option(metavar="S,..", help="Sizes and ranges.")] = None,
    rate: Annotated[str | None, typer.Option(metavar="R,..", help="Rates of links.")] = None,
    seeds: Annotated[str | None, typer.Option(metavar="N,..", help="Seeds of random data.")] = None,
    collective: Annotated[
        str | None, typer.Option(metavar="KIND,..", help="Collectives, where there are several.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="A,..", help="Algorithms, where there are several.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="D,..", help="Dtypes, where there are several.")
    ] = None,
    per_rank: Annotated[
        bool, typer.Option("--per-rank", help="Sizes are each rank's input, not the total.")
    ] = False,
    pin: Annotated[
        bool, typer.Option("--pin", help="Keep the calling thread of every rank on one core.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="How often each one runs.")] = 5,
    json: Json = False,
    output: Annotated[
        str | None,
        to_file(
            "Append the results here; in a checkout to benchmarks/results/NAME.jsonl. "
            "Without NAME: write what was recorded there as a page, .md."
        ),
    ] = None,
) -> None:
    """Run one benchmark, or list the questions."""
    command = checkout_module("benchmarks.command")
    if name is None:
        command.list_questions(output_path(output, (".md",)), json=json)
        return
    command.run_benchmark(
        name,
        output_path(output, (".jsonl",)),
        json=json,
        against=words(against),
        ranks=numbers(ranks, "--ranks"),
        sizes=tuple(parse_sizes(size)) if size else (),
        rates=tuple(parse_rate(word) for word in words(rate)),
        seeds=numbers(seeds, "--seeds"),
        rounds=rounds,
        collectives=words(collective),
        algorithms=words(algorithm),
        dtypes=words(dtype),
        per_rank=per_rank,
        pin=pin,
    )
