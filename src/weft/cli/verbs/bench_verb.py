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


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="The benchmark to run; default: list them.",
        autocompletion=complete_bench,
        show_default=False,
    ),
]

# Which of its cases a benchmark runs; by default those that it chooses.
Peers = Annotated[
    str | None, typer.Option("--against", metavar="PEER,..", help="Peers to compare with.")
]
RankCounts = Annotated[
    str | None, typer.Option("--ranks", metavar="N,..", help="Numbers of ranks.")
]
BenchSizes = Annotated[str | None, typer.Option("--size", metavar="S,..", help="Sizes and ranges.")]
LinkRates = Annotated[str | None, typer.Option("--rate", metavar="R,..", help="Rates of links.")]
Seeds = Annotated[str | None, typer.Option(metavar="N,..", help="Seeds of random data.")]
Kinds = Annotated[
    str | None,
    typer.Option("--collective", metavar="KIND,..", help="Collectives, where there are several."),
]
Algorithms = Annotated[
    str | None,
    typer.Option("--algorithm", metavar="A,..", help="Algorithms, where there are several."),
]
Dtypes = Annotated[
    str | None, typer.Option("--dtype", metavar="D,..", help="Dtypes, where there are several.")
]

# How they are measured.
PerRank = Annotated[
    bool, typer.Option("--per-rank", help="Sizes are each rank's input, not the total.")
]
Pin = Annotated[
    bool, typer.Option("--pin", help="Keep the calling thread of every rank on one core.")
]
Rounds = Annotated[int, typer.Option(min=1, help="How often each one runs.")]


def bench(
    name: Name = None,
    *,
    against: Peers = None,
    ranks: RankCounts = None,
    size: BenchSizes = None,
    rate: LinkRates = None,
    seeds: Seeds = None,
    collective: Kinds = None,
    algorithm: Algorithms = None,
    dtype: Dtypes = None,
    per_rank: PerRank = False,
    pin: Pin = False,
    rounds: Rounds = 5,
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
