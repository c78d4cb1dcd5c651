"""Benchmarks: weft and its peers, the same work in the same run. One question per file."""

import re
from importlib import import_module
from pathlib import Path

from weft.bench.rows import Bench, Options, Row
from weft.errors import UnknownNameError, nearest

__all__ = ["Bench", "Options", "Row", "find_bench", "questions"]

_STATED = re.compile(r'^QUESTION = "(.+)"$', re.MULTILINE)


def questions() -> dict[str, str]:
    """List the questions by name: every file of this folder that states its ``QUESTION``.

    They are read, not imported: some need torch.
    """
    files = sorted(Path(__file__).parent.glob("*.py"))
    found = {path.stem: _STATED.search(path.read_text(encoding="utf-8")) for path in files}
    return {name: stated[1] for name, stated in found.items() if stated}


def find_bench(name: str) -> Bench:
    """Find the benchmark of that name."""
    names = questions()
    if name not in names:
        raise UnknownNameError(f"no benchmark is called {name!r}", nearest(name, names))
    module = import_module(f"weft.bench.{name}")
    return Bench(name, module.QUESTION, module.run, getattr(module, "count_rows", None))
