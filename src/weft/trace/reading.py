"""A file of any format as a Trace."""

from collections.abc import Iterable
from pathlib import Path

from weft.trace.kineto import read_kineto
from weft.trace.trace import Trace


def read(path: Path | str) -> Trace:
    """Read one rank's trace."""
    return read_kineto(path)


def read_all(paths: Iterable[Path | str]) -> list[Trace]:
    """Read the traces of several ranks."""
    return [read(path) for path in paths]
