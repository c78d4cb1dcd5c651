"""Outputs shared by all verbs: JSON, a file whose suffix selects the format, and progress.

Progress of long work is shown on stderr, on a terminal only, and cleared when the work is done.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from weft.errors import UsageError
from weft.units import printable

Rows = Sequence[Mapping[str, Any]]


def output_path(output: str | None, suffixes: tuple[str, ...]) -> Path | None:
    """Check early that the output file can be written; return its path."""
    if output is None:
        return None
    path = Path(output)
    if not path.suffix or not path.name.endswith(suffixes):
        raise UsageError(
            f"cannot infer the output format from {output!r}", f"Use one of {', '.join(suffixes)}."
        )
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {output!r}: folder {str(path.parent)!r} does not exist")
    return path


def print_json(verb: str, platform: str | None, rows: Rows, **more: Any) -> None:
    """Print the results of a verb as JSON."""
    from weft.report.results import results_json

    print(results_json(verb, platform, rows, **more))


def write(path: Path, what: str | bytes | Rows) -> str:
    """Write text, bytes, or rows as CSV; return a note for ``print_written``."""
    if isinstance(what, bytes):
        path.write_bytes(what)
    elif isinstance(what, str):
        path.write_text(what, encoding="utf-8")
    else:
        from weft.report.results import results_csv

        path.write_text(results_csv(what), encoding="utf-8")
    return f"wrote {path}"


def write_timelines(path: Path, *timelines: Any, labels: Sequence[str] = ()) -> str:
    """Write timelines for Perfetto; return a note for ``print_written``."""
    from weft.trace import write_perfetto

    write_perfetto(path, *timelines, labels=labels)
    return f"wrote {path}: open it in ui.perfetto.dev"


def print_written(note: str, *, quiet: bool = False) -> None:
    """Print the note of a written file, unless there is none or stdout is for a program.

    Files are written before results are printed, so that a closed pipe (``| head``) loses none.
    """
    if note and not quiet:
        print(f"\n{printable(note)}")


Item = TypeVar("Item")


@contextmanager
def working(label: str) -> Iterator[None]:
    """Show that work of unknown length is in progress."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield


def track(items: Sequence[Item] | Iterable[Item], label: str, total: int = 0) -> Iterator[Item]:
    """Yield the items one by one and show how many are done."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    count = total or (len(items) if isinstance(items, Sequence) else None)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=count)
        for item in items:
            yield item
            progress.advance(task)


@contextmanager
def reported(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that is told how many items of how many are done; None in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
