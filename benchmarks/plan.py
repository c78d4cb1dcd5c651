"""How good plans are against the best there is, and how long planning large jobs takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import Any

from benchmarks.cost import output_of
from benchmarks.random_steps import exhaustive, random_steps
from benchmarks.rows import Options, Row
from weft.hardware import platform
from weft.planner.planning import MODES, plan
from weft.step import NO_HOST

QUESTION = "Does a plan choose what exhaustive search would, and how long does planning take?"

PLATFORMS = ("mi300x-8", "h100-8", "a100-8", "mi250x-8")
STEPS = 500  # on all platforms together
NEAR = 1.02  # as good as the best
SHARE = 0.99  # of the steps that must be
LARGE = {
    "llama-70b on 1,024 GPUs": ("llama-70b", "mi300x-8x128"),
    "dlrm on 4,096 nodes": ("dlrm", "mi300x-8x4096"),
}
LIMIT = 2.0  # seconds of a command, Python's start included
WAYS = MODES
_TIMEOUT = 60.0
_START = "import sys; from weft.cli import main; sys.exit(main(sys.argv[1:]))"


def count_rows(options: Options) -> int:
    """Return how many rows there will be."""
    return len(WAYS) * len(_seeds(options)) + len(LARGE)


def run(options: Options) -> Iterable[Row]:
    """Plan random steps, then large jobs."""
    for seed in _seeds(options):
        yield from _regret_rows(seed)
    for name, (graph, machine) in LARGE.items():
        times = tuple(_command(graph, machine) for _ in range(options.rounds))
        must = f"{LIMIT:g} s"
        middle = sorted(times)[len(times) // 2]
        more = {"must": must, "reached": f"{middle:.2f} s", "met": middle <= LIMIT}
        yield Row("plan", {"part": "large", "model": name, "platform": machine}, times, more=more)


def _seeds(options: Options) -> tuple[int, ...]:
    return options.seeds or (1,)


def _regret_rows(seed: int) -> Iterator[Row]:
    """Plan the steps of all platforms in each mode, against the best of every combination."""
    ratios: dict[str, list[float]] = {way: [] for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for name in PLATFORMS:
        machine = platform(name)
        for step in random_steps(STEPS // len(PLATFORMS), machine, seed=seed):
            best = exhaustive(step, machine)
            for way in WAYS:
                begin = time.perf_counter()
                made = plan(step.graph, machine, mode=way, host=NO_HOST)
                times[way].append(time.perf_counter() - begin)
                ratios[way].append(made.planned / best)
    for way in WAYS:
        yield _regret_row(way, seed, ratios[way], times[way])


def _regret_row(way: str, seed: int, ratios: list[float], times: list[float]) -> Row:
    near = fmean(ratio <= NEAR for ratio in ratios)
    more: dict[str, Any] = {
        "within_2_percent": near,
        "best": fmean(ratio <= 1 + 1e-9 for ratio in ratios),
        "mean_regret": fmean(ratios) - 1,
        "worst_regret": max(ratios) - 1,
    }
    if way == "search":
        more |= {"must": f"{SHARE:.0%}", "reached": f"{near:.1%}", "met": near >= SHARE}
    case = {"part": "regret", "way": way, "steps": len(ratios), "seed": seed}
    case["platforms"] = ", ".join(PLATFORMS)
    return Row("plan", case, tuple(times), more=more)


def _command(graph: str, machine: str) -> float:
    """Plan by the command that a user types; gives its seconds from start to end."""
    words = ["plan", graph, "--on", machine, "--json"]
    command = [sys.executable, "-c", _START, *words]
    begin = time.perf_counter()
    output_of(command, f"weft plan {graph}", timeout=_TIMEOUT)
    return time.perf_counter() - begin
