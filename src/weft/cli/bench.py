"""``weft bench``: weft and its peers, the same work in the same run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import Json, complete_bench, numbers, to_file, words
from weft.cli.outputs import output_path, print_json, print_written, write
from weft.cli.progress import track

if TYPE_CHECKING:
    from weft.bench import Bench, Options, Row

_RESULTS = Path("benchmarks/results")


def bench(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", autocompletion=complete_bench, show_default=False),
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
    from weft.bench import Options, find_bench
    from weft.units import parse_rate, parse_sizes

    if name is None:
        _tell_of_all(output_path(output, (".md",)), json=json)
        return
    found = find_bench(name)
    options = Options(
        against=words(against),
        ranks=numbers(ranks, "--ranks"),
        sizes=tuple(parse_sizes(size)) if size else (),
        rates=tuple(parse_rate(word) for word in words(rate)),
        seeds=numbers(seeds, "--seeds"),
        rounds=rounds,
        collectives=words(collective),
        algorithms=words(algorithm),
        per_rank=per_rank,
        pin=pin,
    )
    path = output_path(output, (".jsonl",)) or _in_checkout(name)
    _answer(found, options, path, json=json)


def _tell_of_all(page: Path | None, *, json: bool) -> None:
    """List the questions, or write what was recorded of them as a page."""
    from weft.bench import questions

    if page:
        _write_page(questions(), page)
    else:
        _list(questions(), json=json)


def _answer(found: "Bench", options: "Options", path: Path | None, *, json: bool) -> None:
    from weft.bench.machine import append

    rows = []
    total = found.count(options) if found.count else 0
    for row in track(found.run(options), found.question, total):
        rows.append(row)
        if path:
            append(path, [row])
    if json:
        print_json("bench", None, [row.as_result() for row in rows])
    else:
        _print_rows(found, rows)
        if path:
            print(f"\nadded to {path}")


def _in_checkout(name: str) -> Path | None:
    return _RESULTS / f"{name}.jsonl" if _RESULTS.is_dir() else None


def _write_page(questions: dict[str, str], page: Path) -> None:
    from weft.cli.bench_page import results_page
    from weft.errors import UsageError

    if not _RESULTS.is_dir():
        raise UsageError(
            f"there are no recorded results: {_RESULTS} is missing",
            "Run this in a checkout, or name a benchmark.",
        )
    print_written(write(page, results_page(questions, _RESULTS)))


def _list(questions: dict[str, str], *, json: bool) -> None:
    rows = [{"bench": name, "question": question} for name, question in questions.items()]
    if json:
        print_json("bench", None, rows)
        return
    from weft.report.text import Column, print_table

    columns = [Column("bench", "bench", right=False), Column("question", "question", right=False)]
    print_table(columns, rows)


def _print_rows(found: "Bench", rows: list["Row"]) -> None:
    from weft.cli.bench_collectives import print_collective_rows, print_figure_rows
    from weft.cli.bench_predict import print_predict_rows
    from weft.cli.bench_table import print_notes, print_rows

    own = {
        "collectives": print_collective_rows,
        "figures": print_figure_rows,
        "predict": print_predict_rows,
    }
    print(found.question)
    own.get(found.name, print_rows)(rows)
    print_notes(rows)
