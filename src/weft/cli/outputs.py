"""What every verb does with its results: one JSON object, or a file by its suffix."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.errors import UsageError

Rows = Sequence[Mapping[str, Any]]


def output_path(output: str | None, suffixes: tuple[str, ...]) -> Path | None:
    """Check early that what a verb will write can be written where it was asked to."""
    if output is None:
        return None
    path = Path(output)
    if not path.suffix or not path.name.endswith(suffixes):
        raise UsageError(
            f"cannot write {output!r}: its suffix says nothing",
            f"Use one of {', '.join(suffixes)}.",
        )
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {output!r}: there is no folder {str(path.parent)!r}")
    return path


def print_json(verb: str, platform: str | None, rows: Rows, **more: Any) -> None:
    """Print what a verb found for programs."""
    from weft.report.results import results_json

    print(results_json(verb, platform, rows, **more))


def write(path: Path, what: str | bytes | Rows, *, quiet: bool) -> None:
    """Write a text, bytes, or rows as a table, and say so."""
    if isinstance(what, bytes):
        path.write_bytes(what)
    elif isinstance(what, str):
        path.write_text(what, encoding="utf-8")
    else:
        from weft.report.results import results_csv

        path.write_text(results_csv(what), encoding="utf-8")
    told(path, quiet=quiet)


def write_timelines(path: Path, *timelines: Any, quiet: bool) -> None:
    """Write timelines for Perfetto, and say so."""
    from weft.trace import write_perfetto

    write_perfetto(path, *timelines)
    told(path, ": open it in ui.perfetto.dev", quiet=quiet)


def told(path: Path, hint: str = "", *, quiet: bool) -> None:
    """Return what was written, unless stdout belongs to a program."""
    if not quiet:
        print(f"\nwrote {path}{hint}")


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what fits into a line of a table."""
    return {key: value for key, value in row.items() if not isinstance(value, (dict, list))}
