"""How good plans are beside the best there is, and how long planning large jobs takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import TYPE_CHECKING, Any

from weft.bench.cost import output_of
from weft.bench.random_steps import by_plan, exhaustive, published, random_steps
from weft.bench.rows import Options, Row
from weft.c3 import Pricer
from weft.hardware import platform
from weft.planner.planning import plan
from weft.workload import NO_HOST

if TYPE_CHECKING:
    from weft.bench.random_steps import RandomStep

QUESTION = "Does a plan choose what exhaustive search would, and how long does planning take?"

PLATFORMS = ("mi300x-8", "h100-8", "a100-8", "mi250x-8")
STEPS = 500  # on all platforms together
NEAR = 1.02  # as good as the best
SHARE = 0.95  # of the steps that must be
LARGE = {
    "llama-70b on 1,024 GPUs": ("llama-70b", "mi300x-8x128"),
    "dlrm on 4,096 nodes": ("dlrm", "mi300x-8x4096"),
}
LIMIT = 5.0  # seconds of a command, Python's start included
WAYS = ("search", "heuristic", "published rule")
_TIMEOUT = 60.0
_START = "import sys; from weft.cli import main; sys.exit(main(sys.argv[1:]))"


def count_rows(options: Options) -> int:
    """Say how many rows there will be."""
    return len(WAYS) * len(_seeds(options)) + len(LARGE)


def run(options: Options) -> Iterable[Row]:
    """Plan random steps, then large jobs."""
    for seed in _seeds(options):
        yield from _regret_rows(seed)
    for name, (workload, machine) in LARGE.items():
        times = tuple(_command(workload, machine) for _ in range(options.rounds))
        must = f"{LIMIT:g} s"
        middle = sorted(times)[len(times) // 2]
        more = {"must": must, "reached": f"{middle:.2f} s", "met": middle <= LIMIT}
        yield Row("plan", {"part": "large", "model": name, "platform": machine}, times, more=more)


def _seeds(options: Options) -> tuple[int, ...]:
    return options.seeds or (1,)


def _regret_rows(seed: int) -> Iterator[Row]:
    """Ask for all platforms, each way of choosing beside the best of every combination."""
    ratios: dict[str, list[float]] = {way: [] for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    own: list[float] = []  # the published rule beside the best mask, which is all it chooses
    for name in PLATFORMS:
        pricer = Pricer(platform(name))
        for step in random_steps(STEPS // len(PLATFORMS), pricer.platform, seed=seed):
            best = exhaustive(step, pricer)
            for way in WAYS:
                begin = time.perf_counter()
                seconds = _by(way, step, pricer)
                times[way].append(time.perf_counter() - begin)
                ratios[way].append(seconds / best)
            own.append(published(step, pricer) / exhaustive(step, pricer, "partition"))
    for way in WAYS:
        row = _regret_row(way, seed, ratios[way], times[way])
        if way == "published rule":
            row.more["within_2_percent_of_its_own"] = fmean(ratio <= NEAR for ratio in own)
        yield row


def _by(way: str, step: RandomStep, pricer: Pricer) -> float:
    """Choose in one way, and simulate what was chosen."""
    if way not in ("search", "heuristic"):
        return published(step, pricer)
    made = plan(step.workload, pricer.platform, mode=way, host=NO_HOST)
    return by_plan(step, made, pricer)


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


def _command(workload: str, machine: str) -> float:
    """Plan by the command that a user types; gives its seconds from start to end."""
    words = ["plan", workload, "--on", machine, "--json"]
    command = [sys.executable, "-c", _START, *words]
    begin = time.perf_counter()
    output_of(command, f"weft plan {workload}", timeout=_TIMEOUT)
    return time.perf_counter() - begin
