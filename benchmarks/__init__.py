"""Benchmarks: weft and its peers, the same work in the same run. One question per file.

``python -m benchmarks NAME`` runs one of them, as ``weft bench NAME`` does in a checkout.
"""

import os
import re
from importlib import import_module
from pathlib import Path

from benchmarks.rows import Bench, Options, Row
from weft.errors import UnknownNameError, nearest

__all__ = ["Bench", "Options", "Row", "find_bench", "questions"]

# Ranks and other processes that benchmarks start find this package wherever they run.
_ROOT = str(Path(__file__).parents[1])
if _ROOT not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (_ROOT, os.environ.get("PYTHONPATH", "")))
    )

_STATED = re.compile(r'^QUESTION = "(.+)"$', re.MULTILINE)


def questions() -> dict[str, str]:
    """Return the questions by name: every file of this folder that states its ``QUESTION``.

    Files are read, not imported, because some need torch.
    """
    files = sorted(Path(__file__).parent.glob("*.py"))
    found = {path.stem: _STATED.search(path.read_text(encoding="utf-8")) for path in files}
    return {name: stated[1] for name, stated in found.items() if stated}


def find_bench(name: str) -> Bench:
    """Return the benchmark of that name."""
    names = questions()
    if name not in names:
        raise UnknownNameError(f"unknown benchmark {name!r}", nearest(name, names))
    module = import_module(f"benchmarks.{name}")
    return Bench(name, module.QUESTION, module.run, getattr(module, "count_rows", None))
