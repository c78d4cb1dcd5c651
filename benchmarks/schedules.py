"""What it costs to build and check a schedule, compact and written out."""

from collections.abc import Iterable

from benchmarks.cost import cost_of
from benchmarks.rows import Options, Row
from weft.collectives import collective
from weft.schedule.check import check

QUESTION = "What does it cost to build and check a direct all-to-all of 1,024 ranks?"
NUM_RANKS = 1024
LIMITS = {"compact": (0.2, 100 << 20), "written out": (5.0, 1500 << 20)}


def run(options: Options) -> Iterable[Row]:
    """Build and check it in a fresh process, as often as there are rounds."""
    for form, (limit_cpu, limit_bytes) in LIMITS.items():
        costs = [cost_of("benchmarks.schedules:build", form) for _ in range(options.rounds)]
        typical = sorted(costs, key=lambda cost: cost.cpu)[len(costs) // 2]
        more = {
            "cpu": typical.cpu,
            "limit_cpu": limit_cpu,
            "peak_bytes": typical.peak_bytes,
            "limit_bytes": limit_bytes,
            "stored_commands": typical.value,
        }
        case = {"collective": "all_to_all", "algorithm": "direct", "ranks": NUM_RANKS, "form": form}
        yield Row("schedules", case, tuple(cost.wall for cost in costs), more=more)


def build(form: str) -> int:
    """Build and check; ``written out`` looks at every command of every rank."""
    schedule = collective("all_to_all", "direct", num_ranks=NUM_RANKS, nbytes=1 << 30)
    check(schedule, collapse=form == "compact")
    return schedule.num_stored
