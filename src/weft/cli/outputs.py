"""Outputs shared by all verbs: one JSON object, or a file whose suffix selects the format."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.errors import UsageError

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
        print(f"\n{note}")
