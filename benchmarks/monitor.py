"""What watching a training run costs: steps with and without ``weft.torch.monitor`` in turn."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.cost import output_of
from benchmarks.rows import Options, Row

QUESTION = "How much longer does a training step take while weft.torch.monitor watches it?"

_STEP = 0.05  # seconds of a core
_TIMEOUT = 600.0


def run(options: Options) -> Iterable[Row]:
    """Measure two CPU ranks with Gloo and eight buckets of gradients."""
    yield monitored(_STEP, options.rounds)


def count_rows(_: Options) -> int:
    """Return how many rows there will be."""
    return 1


def monitored(seconds: float, rounds: int) -> Row:
    """Return seconds of a core a step with the monitor; ``overhead`` is its share of a step."""
    script = Path(__file__).with_name("torch_monitored_rank.py")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    command = [sys.executable, *launch, str(seconds), str(rounds)]
    spoken = output_of(command, "a monitored job", timeout=_TIMEOUT).splitlines()
    found = json.loads(next(line for line in spoken if line.startswith("{")))
    (wall_off, core_off), (wall_on, core_on) = found["off"], found["on"]
    more = {
        "without": core_off,
        "overhead": core_on / core_off - 1,
        "wall": wall_on,
        "wall_without": wall_off,
        "windows": found["windows"],
    }
    about = {"ranks": 2, "backend": "gloo", "step": seconds}
    return Row("monitor", about, tuple(found["blocks"][1]), {}, more)
