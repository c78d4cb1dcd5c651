"""Benchmarks: weft and its peers, the same work in the same run. One question per file."""

from importlib import import_module
from pathlib import Path

from weft.bench.rows import Bench, Options, Row
from weft.errors import UnknownNameError, nearest

__all__ = ["Bench", "Options", "Row", "bench_names", "find_bench"]

_PARTS = {
    "__init__",
    "broadcast_plots",
    "browser",
    "contest",
    "cost",
    "drawn_models",
    "environments",
    "exchange",
    "far_teams",
    "foretold",
    "harness",
    "hta_reader",
    "leash",
    "limits",
    "links",
    "lookups",
    "machine",
    "made_trace",
    "mpi_rank",
    "namespaces",
    "overlap",
    "random_steps",
    "rows",
    "serving",
    "team",
    "teams",
    "torch_alone",
    "torch_broadcast",
    "torch_dlrm",
    "torch_fbgemm_rank",
    "torch_foretold",
    "torch_hosts",
    "torch_joining",
    "torch_kv",
    "torch_links",
    "torch_llama",
    "torch_lookups",
    "torch_models",
    "torch_placed",
    "torch_planned",
    "torch_rank",
    "torch_seen",
    "torch_sharding",
    "torch_slowest",
    "torch_step_rank",
    "torch_torchrec_rank",
    "torch_training",
    "torch_weights",
    "torch_zero",
    "trained",
    "weft_rank",
}  # what the benchmarks are made of


def bench_names() -> tuple[str, ...]:
    """List the questions: every file of this folder that asks one."""
    files = Path(__file__).parent.glob("*.py")
    return tuple(sorted(path.stem for path in files if path.stem not in _PARTS))


def find_bench(name: str) -> Bench:
    """Find the benchmark of that name."""
    names = bench_names()
    if name not in names:
        raise UnknownNameError(f"no benchmark is called {name!r}", nearest(name, names))
    module = import_module(f"weft.bench.{name}")
    return Bench(name, module.QUESTION, module.run, getattr(module, "count_rows", None))
