"""Benchmarks: weft and its peers, the same work in the same run. One question per file."""

from importlib import import_module
from pathlib import Path

from weft.bench.rows import Bench, Options, Row
from weft.errors import UnknownNameError, nearest

__all__ = ["Bench", "Options", "Row", "bench_names", "find_bench"]


def bench_names() -> tuple[str, ...]:
    """List the questions: every file of this folder that states its ``QUESTION``."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple(path.stem for path in files if "\nQUESTION = " in path.read_text(encoding="utf-8"))


def find_bench(name: str) -> Bench:
    """Find the benchmark of that name."""
    names = bench_names()
    if name not in names:
        raise UnknownNameError(f"no benchmark is called {name!r}", nearest(name, names))
    module = import_module(f"weft.bench.{name}")
    return Bench(name, module.QUESTION, module.run, getattr(module, "count_rows", None))
