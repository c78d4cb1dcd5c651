"""Whether the placement of tables that is predicted to be best is, on this machine.

A task is a set of random tables for two ranks and some ways to place them: by six sharders and at
random. All are carried out for real, in turn; of the one predicted to be best it is asked how much
longer it takes than the one that was.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.rows import Options, Row
from weft.calibration.steady_memory import steady_memory
from weft.errors import PlatformError
from weft.hardware import Platform, platform
from weft.models.tables import Shard, Table
from weft.planner.sharding import Sharder, ShardingPlan
from weft.runtime.spawn import spawn

if TYPE_CHECKING:
    from benchmarks.torch_table_placement import Task

QUESTION = "Is the placement of tables that is predicted to be best really best, here?"
RANKS = 2
SHARDERS = ("size", "dim", "lookup", "norm", "column-wise", "search")
_TASKS = tuple(range(1, 21))
_RANDOM = 3  # placements drawn at random
_WITHIN = 1.10  # of the best counts as best
_SHARE = 0.9  # of the tasks must be
_TIMEOUT = 60.0
_QUANTILE = 0.25
_TABLE_BYTES = 128 << 20  # that a table has at most


def count_rows(options: Options) -> int:
    """Return how many rows there are: tasks, and one for all of them."""
    tasks = len(options.seeds or _TASKS)
    return tasks + (tasks > 1)


def run(options: Options) -> Iterator[Row]:
    """Carry out the tasks of the seeds; the last row sums up those of this run."""
    machine = calibrated()
    found = []
    for seed in options.seeds or _TASKS:
        found.append(_task(seed, machine, options.rounds))
        yield found[-1]
    if len(found) > 1:
        yield summed_up(found)


def calibrated() -> Platform:
    """Return two ranks of this machine; lookups are measured now if no calibration has them."""
    from weft.calibration.torch_lookup_rates import measure_embedding

    try:
        here = platform("here", num_ranks=RANKS)
    except PlatformError:
        here = platform("cpu", num_ranks=RANKS)
    device = here.require_device()
    if not device.lookups:
        device = replace(device, lookups=measure_embedding())
    return replace(here, device=device)


def _task(seed: int, machine: Platform, rounds: int) -> Row:
    from benchmarks.torch_table_placement import Task, measure_task

    tables, batch = drawn_tables(seed)
    plans = placements(Sharder(tables, machine, batch), seed)
    task = Task(tables, batch, tuple(plan.shards for plan in plans))
    with steady_memory():
        first, second = spawn(measure_task, RANKS, task, rounds, timeout=_TIMEOUT)
    slower = np.maximum(np.array(first), np.array(second))
    return judged(seed, task, plans, slower.tolist())


def drawn_tables(seed: int) -> tuple[tuple[Table, ...], int]:
    """Draw tables whose lookups make a step heavy, and the samples of a batch."""
    generator = random.Random(seed)  # noqa: S311 - a benchmark draws the same ones each time
    batch = generator.choice((2048, 4096))
    tables = tuple(_random_table(number, generator) for number in range(generator.randint(8, 14)))
    return tables, batch


def _random_table(number: int, generator: random.Random) -> Table:
    dim = generator.choice((16, 32, 64, 128))
    rows = min(int(10 ** generator.uniform(3.3, 6.2)), _TABLE_BYTES // 4 // dim)
    pooling = generator.choice((1, 2, 5, 10, 20, 40))
    return Table(f"table{number}", rows, dim, pooling, generator.choice((0.0, 0.8, 1.05, 1.2)))


def placements(sharder: Sharder, seed: int) -> list[ShardingPlan]:
    """Return the plans of the sharders and random ones; those that place alike once."""
    generator = random.Random(-seed)  # noqa: S311
    known = {plan.name: plan for plan in sharder.plans()}
    found = [known[name] for name in SHARDERS if name in known]
    for number in range(_RANDOM):
        shards = [
            Shard(index, generator.randrange(RANKS), table.rows, table.dim)
            for index, table in enumerate(sharder.tables)
        ]
        found.append(sharder.priced(f"random{number}", shards))
    different: dict[frozenset[Any], ShardingPlan] = {}
    for plan in found:
        different.setdefault(_alike(plan), plan)
    return list(different.values())


def _alike(plan: ShardingPlan) -> frozenset[Any]:
    """Distinguish plans by what ranks hold, whichever rank it is."""
    held: dict[int, list[tuple[int, int, int]]] = {}
    for shard in plan.shards:
        held.setdefault(shard.rank, []).append((shard.table, shard.rows, shard.dim))
    return frozenset(
        frozenset((each, parts.count(each)) for each in parts) for parts in held.values()
    )


def judged(seed: int, task: "Task", plans: Sequence[ShardingPlan], times: list[list[float]]) -> Row:
    """Compare the plan predicted to be best with the best one."""
    # What others take of the cores only adds, so the faster rounds say more.
    typical = [float(np.quantile(each, _QUANTILE)) for each in times]
    chosen = min(range(len(plans)), key=lambda n: plans[n].seconds)
    best = min(range(len(plans)), key=typical.__getitem__)
    over = typical[chosen] / typical[best]
    case = {"task": seed, "tables": len(task.tables), "batch": task.batch, "plans": len(plans)}
    more = {
        "chosen": plans[chosen].name,
        "predicted": plans[chosen].seconds,
        "best": plans[best].name,
        "chosen_seconds": typical[chosen],
        "best_seconds": typical[best],
        "worst_seconds": max(typical),
        "over_best": over,
        "met": over <= _WITHIN,
    }
    return Row("sharding_here", case, tuple(times[chosen]), {}, more)


def summed_up(rows: Sequence[Row]) -> Row:
    """Return in how many tasks the chosen placement was the best, or nearly."""
    near = sum(row.more["met"] for row in rows)
    case = {"task": "all", "tasks": len(rows)}
    more = {
        "near_best": near,
        "share": near / len(rows),
        "over_best": median(row.more["over_best"] for row in rows),
        "met": near >= _SHARE * len(rows),
    }
    return Row("sharding_here", case, tuple(row.seconds for row in rows), {}, more)
