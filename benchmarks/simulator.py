"""What the simulator answers on large machines, and what the answer costs."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.cost import Cost, cost_of
from benchmarks.rows import Options, Row
from benchmarks.uneven_all_to_all import uneven_all_to_all
from weft.collectives import collective
from weft.hardware import platform
from weft.schedule import CommandKind, Schedule
from weft.simulator import simulate

QUESTION = "Does the simulator give the right answer on large machines, and at what cost?"

GIB = float(1 << 30)
TOLERANCE = 2.5e-3  # rates are shared anew once for all that ends in this part of the elapsed time


@dataclass(frozen=True, slots=True)
class Case:
    """One question to the simulator, the answer by hand, and what it may cost."""

    kind: str
    algorithm: str
    network: str
    limit_cpu: float
    limit_bytes: int | None = None
    tolerance: float = 0.0
    expected: Callable[[], float] | None = None


def injection_bound() -> float:
    """Return all but a rank's own chunk leaves through its port; then the last byte travels."""
    return 1023 / 1024 / 50 + 500e-9


def ring_all_reduce() -> float:
    """Return the closed form: 2(N-1) steps of a chunk each."""
    return 2 * 1023 / 1024 / 50 + 2 * 1023 * 500e-9


def two_levels(num_nodes: int) -> float:
    """Reduce-scatter and all-gather inside, halving and doubling of an eighth outside."""
    inside = 2 * (7 / 8 / 400 + 936e-9)
    outside = 2 * ((num_nodes - 1) / num_nodes / 8 / 50 + math.log2(num_nodes) * 2e-6)
    return inside + outside


CASES = {
    "all_to_all": Case(
        "all_to_all",
        "direct",
        "switch(1024)@50GiB/s,500ns",
        limit_cpu=0.5,
        limit_bytes=300 << 20,
        expected=injection_bound,
    ),
    "ring": Case(
        "all_reduce",
        "ring",
        "ring(1024)@50GiB/s,500ns",
        limit_cpu=0.5,
        expected=ring_all_reduce,
    ),
    "two levels": Case(
        "all_reduce",
        "hierarchical",
        "switch(8)@400GiB/s,936ns/switch(2048)@50GiB/s,2us",
        limit_cpu=2.0,
        limit_bytes=500 << 20,
        expected=lambda: two_levels(2048),
    ),
    "two levels, large": Case(
        "all_reduce",
        "hierarchical",
        "switch(8)@400GiB/s,936ns/switch(16384)@50GiB/s,2us",
        limit_cpu=5.0,
        limit_bytes=1 << 30,
        expected=lambda: two_levels(16384),
    ),
    "uneven, in order": Case(
        "uneven all_to_all", "nic0", "switch(256)@50GiB/s,500ns", limit_cpu=5.0
    ),
    "uneven, at once": Case(
        "uneven all_to_all",
        "stream0",
        "switch(256)@50GiB/s,500ns",
        limit_cpu=2.0,
        tolerance=TOLERANCE,
    ),
    "uneven, at once, exact": Case(
        "uneven all_to_all", "stream0", "switch(256)@50GiB/s,500ns", limit_cpu=30.0
    ),
}


def run(options: Options) -> Iterable[Row]:
    """Ask each question in a fresh process, as often as there are rounds."""
    for name, case in CASES.items():
        if options.ranks and platform(case.network).num_ranks not in options.ranks:
            continue
        costs = [
            cost_of("benchmarks.simulator:answer", name) for _ in range(_rounds(case, options))
        ]
        yield _row(name, case, costs)


def _rounds(case: Case, options: Options) -> int:
    return 1 if case.limit_cpu > 10 else options.rounds


def _row(name: str, case: Case, costs: list[Cost]) -> Row:
    typical = sorted(costs, key=lambda cost: cost.cpu)[len(costs) // 2]
    more = {
        "answer": typical.value,
        **_errors(name, case, typical.value),
        "cpu": typical.cpu,
        "limit_cpu": case.limit_cpu,
        "process_cpu": typical.process_cpu,
        "peak_bytes": typical.peak_bytes,
        "limit_bytes": case.limit_bytes,
    }
    about = {
        "name": name,
        "collective": case.kind,
        "algorithm": case.algorithm,
        "network": case.network,
        "tolerance": case.tolerance,
    }
    times = tuple(cost.wall for cost in costs)
    return Row("simulator", about, times, more={k: v for k, v in more.items() if v is not None})


def _errors(name: str, case: Case, seconds: float) -> dict[str, float]:
    if case.expected is not None:
        expected = case.expected()
        return {"expected": expected, "error": seconds / expected - 1}
    if case.tolerance:
        mean, worst = cost_of("benchmarks.simulator:batching_errors", name).value
        return {"mean_finish_error": mean, "worst_finish_error": worst}
    return {}


def answer(name: str) -> float:
    """Build the schedule and simulate it: the seconds of one case."""
    case = CASES[name]
    return simulate(_schedule(case), platform(case.network), tolerance=case.tolerance).seconds


def batching_errors(name: str) -> tuple[float, float]:
    """Compare when each flow ends with the exact solution: mean and worst relative error."""
    case = CASES[name]
    schedule, network = _schedule(case), platform(case.network)
    batched, exact = (
        simulate(schedule, network, tolerance=tolerance).of(kind=CommandKind.COPY)
        for tolerance in (case.tolerance, 0.0)
    )
    moves = exact.nbytes > 0
    error = np.abs(batched.end[moves] / exact.end[moves] - 1)
    return float(error.mean()), float(error.max())


def _schedule(case: Case) -> Schedule:
    network = platform(case.network)
    if case.kind == "uneven all_to_all":
        return uneven_all_to_all(random_sizes(network.num_ranks), queue=case.algorithm)
    return collective(
        case.kind,
        case.algorithm,
        num_ranks=network.num_ranks,
        nbytes=int(GIB),
        node_size=network.levels[0].size,
    )


def random_sizes(num_ranks: int) -> list[list[int]]:
    """Draw how much each rank sends to each other one: up to 1 MiB, nothing to itself."""
    sizes = np.random.default_rng(0).integers(1, 1 << 20, (num_ranks, num_ranks))
    np.fill_diagonal(sizes, 0)
    rows: list[list[int]] = sizes.tolist()
    return rows
