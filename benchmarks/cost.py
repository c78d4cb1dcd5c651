"""What a call costs by itself: CPU time and peak memory, in a fresh process."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.errors import RunError, RunTimeoutError


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of the call (wall and CPU), and of its process: CPU with start-up, peak bytes."""

    value: Any
    wall: float
    cpu: float
    process_cpu: float
    peak_bytes: int


def cost_of(function: str, *arguments: Any, timeout: float = 600.0) -> Cost:
    """Call ``module:function`` with these JSON values in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cost", function, json.dumps(arguments)]
    spoken = output_of(command, f"{function} in its own process", timeout=timeout)
    return Cost(**json.loads(spoken.splitlines()[-1]))


def output_of(command: Sequence[str], what: str, *, timeout: float) -> str:
    """Run a program to its end and return its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunTimeoutError(f"{what} did not end in {timeout:g} s.") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"{what} failed: {last}")
    return done.stdout


def cpu_seconds() -> float:
    """Return the seconds that this process was at work, all its threads together."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _peak_bytes() -> int:
    """Read the high-water mark of this program; ru_maxrss would count the one before exec too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _call(function: str, arguments: list[Any]) -> dict[str, Any]:
    """Call it and look at the clocks; the modules it needs are loaded before."""
    module, name = function.split(":")
    work = getattr(import_module(module), name)
    cpu, wall = cpu_seconds(), time.perf_counter()
    value = work(*arguments)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    return {
        "value": value,
        "wall": wall,
        "cpu": cpu,
        "process_cpu": cpu_seconds(),
        "peak_bytes": _peak_bytes(),
    }


if __name__ == "__main__":
    print(json.dumps(_call(sys.argv[1], json.loads(sys.argv[2]))))
