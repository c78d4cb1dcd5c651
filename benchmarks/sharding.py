"""How fast tables are placed, and how good the placement is, compared with TorchRec's planner."""

import json
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import environments
from benchmarks.harness import timed
from benchmarks.rows import Options, Row
from weft.errors import RunError
from weft.hardware import Platform, platform
from weft.local_runs.contest import PeerTiming
from weft.models.named import tables_of
from weft.models.tables import Shard, Table
from weft.planner.sharding import Sharder, ShardingPlan

QUESTION = "How fast and how well are embedding tables placed?"
TORCHREC = "torchrec"
_LIMIT = 150.0  # seconds that a peer may take
_CASES = ((26, 8), (500, 128))
_BATCH = 65536


def count_rows(options: Options) -> int:
    """Return how many cases there are."""
    return len(_cases(options))


def run(options: Options) -> Iterator[Row]:
    """Place the tables of each case by weft and by its peers."""
    for num_tables, num_ranks in _cases(options):
        yield _case(num_tables, num_ranks, options)


def _cases(options: Options) -> list[tuple[int, int]]:
    return [case for case in _CASES if not options.ranks or case[1] in options.ranks]


def _case(num_tables: int, num_ranks: int, options: Options) -> Row:
    machine = platform("h100-8" if num_ranks == 8 else f"h100-8x{num_ranks // 8}")
    tables = _tables(num_tables)
    plans: list[ShardingPlan] = []

    def place() -> None:
        plans[:] = Sharder(tables, machine, _BATCH).plans()

    place()
    times = tuple(timed(place) for _ in range(options.rounds))
    case = {"tables": num_tables, "ranks": num_ranks, "batch": _BATCH, "platform": machine.name}
    more: dict[str, Any] = {"predicted": plans[0].seconds, "chosen": plans[0].name}
    row = Row("sharding", case, times, {}, more)
    if options.against and TORCHREC not in options.against:
        return row
    theirs = _torchrec(tables, machine)
    if theirs is None:
        return Row("sharding", case, times, {}, more | {"torchrec": f"none in {_LIMIT:.0f} s"})
    seconds, shards = theirs
    priced = Sharder(tables, machine, _BATCH).priced(TORCHREC, shards)
    peers = {TORCHREC: PeerTiming(seconds, seconds / row.seconds)}
    return Row("sharding", case, times, peers, more | {"peer_predicted": priced.seconds})


def _tables(count: int) -> tuple[Table, ...]:
    """Return the tables of Criteo for 26, otherwise random ones of the sizes that jobs have."""
    known, _ = tables_of("dlrm", {}, _BATCH)
    if count == len(known):
        return known
    generator = random.Random(count)  # noqa: S311 - a benchmark draws the same ones each time
    return tuple(
        Table(
            f"table{number}",
            int(10 ** generator.uniform(3, 7.3)),
            generator.choice((32, 64, 128, 256)),
            generator.choice((1, 1, 5, 20, 80)),
            generator.choice((0.0, 0.8, 1.05)),
        )
        for number in range(count)
    )


def _torchrec(tables: tuple[Table, ...], machine: Platform) -> tuple[float, list[Shard]] | None:
    """Ask TorchRec in a process of its environment; None if it does not end in time."""
    home = environments.environment(TORCHREC, environments.root())
    job = {
        "tables": [
            {"name": t.name, "rows": t.rows, "dim": t.dim, "pooling": t.pooling} for t in tables
        ],
        "ranks": machine.num_ranks,
        "batch": _BATCH,
        "memory": machine.require_device().memory_bytes,
    }
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "job.json", Path(folder) / "plan.json"
        asked.write_text(json.dumps(job), encoding="utf-8")
        script = Path(__file__).with_name("torch_sharding.py")
        command = [str(home / "bin" / "python"), str(script), str(asked), str(answer)]
        try:
            subprocess.run(command, check=True, timeout=_LIMIT, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return None
        except subprocess.CalledProcessError as error:
            raise RunError(
                f"TorchRec's planner failed: {environments.reason(error)}",
                f"Remove {home} to have it made anew, or use --against none.",
            ) from error
        found = json.loads(answer.read_text(encoding="utf-8"))
    number = {table.name: index for index, table in enumerate(tables)}
    return found["seconds"], [_shard(each, number, tables) for each in found["shards"]]


def _shard(each: dict[str, Any], number: dict[str, int], tables: tuple[Table, ...]) -> Shard:
    place = number[each["name"]]
    by_rows = each["rows"] < tables[place].rows
    return Shard(place, each["rank"], each["rows"], each["dim"], by_rows)
