"""``weft tour``: the whole loop on this machine, with the parts that exist."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.failure import explain
from weft.errors import UsageError, WeftError

if TYPE_CHECKING:
    from weft.timeline import Timeline

_PLATFORM = "mi300x-8"
_KINDS = ("all_gather", "all_reduce", "all_to_all")
_PREDICTED = (1 << 10, 1 << 20, 1 << 30)
_RUN = (1 << 10, 1 << 20, 16 << 20)


def tour(
    *,
    ranks: Annotated[int, typer.Option(min=2, max=64, metavar="N", help="Ranks to run here.")] = 2,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FOLDER", help="Where the traces go.")
    ] = "weft-tour",
) -> int:
    """Show each part in turn; one that fails does not stop the others."""
    folder = _folder(output)
    steps: tuple[tuple[str, Callable[[], None]], ...] = (
        ("What works here (weft doctor)", lambda: _examine(ranks)),
        (f"Predict: collectives on {_PLATFORM} (weft collective)", lambda: _predict(folder)),
        (f"Run: the same schedules on {ranks} processes here", lambda: _run(folder, ranks)),
    )
    failed = [
        title for number, (title, step) in enumerate(steps, 1) if not _do(number, title, step)
    ]
    print("\nNext: weft collective --help, weft platforms, weft bench")
    return 1 if failed else 0


def _do(number: int, title: str, step: Callable[[], None]) -> bool:
    print(f"\n{number}. {title}\n", flush=True)
    try:
        step()
    except WeftError as error:
        sys.stdout.flush()
        sys.stderr.write(explain(error))
        return False
    return True


def _folder(output: str) -> Path:
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write into {output!r}: {error.strerror}") from error
    return folder


def _examine(ranks: int) -> None:
    from weft.cli.checkup import examine
    from weft.cli.findings import print_findings

    print_findings(list(examine(ranks)))


def _predict(folder: Path) -> None:
    from weft.cli.pricing import Question, answer
    from weft.cli.tables import print_collectives
    from weft.hardware import platform

    on = platform(_PLATFORM)
    for kind in _KINDS:
        found = [answer(Question(kind, nbytes, on), "auto") for nbytes in _PREDICTED]
        print_collectives(on, [row for each in found for row in each.rows])
        _write(folder / f"predicted-{kind}.json", *found[-2].timelines)


def _run(folder: Path, ranks: int) -> None:
    from weft.cli.pricing import Question
    from weft.cli.running import here, measured
    from weft.cli.tables import print_collectives
    from weft.report.gantt import print_gantt

    on = here(None, ranks)
    for kind in _KINDS[:2]:
        questions = [Question(kind, nbytes // ranks * ranks, on) for nbytes in _RUN]
        found = measured(questions, ["auto"], every=False)
        print_collectives(on, [row for each in found for row in each.rows])
        print("\nOne execution, measured:")
        print_gantt(found[1].timeline, max_lines=8)
        _write(folder / f"run-{kind}.json", *found[1].timelines)


def _write(path: Path, *timelines: "Timeline") -> None:
    from weft.trace import write_perfetto

    write_perfetto(path, *timelines)
    print(f"wrote {path}: open it in ui.perfetto.dev\n")
