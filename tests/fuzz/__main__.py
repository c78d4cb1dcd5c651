"""Fuzz every reader for a while: ``python -m tests.fuzz --seconds 60 [--seed N] [NAME..]``.

Each target runs in a process of its own with bounded memory. What is found is written to
``build/fuzz`` and said; the exit code is 1 then. A row for each target is appended to the results.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import append
from benchmarks.rows import Row
from tests.fuzz.guided import fuzz
from tests.fuzz.targets import targets

ROOT = Path(__file__).parents[2]
_BUILD = ROOT / "build" / "fuzz"
_MEMORY = 6 << 30  # bytes of addresses: importing numpy and its friends takes one of them
_SLACK = 120.0  # seconds that a process may take longer than it was given


def main() -> int:
    """Run the native targets that were built, then those in Python."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", help="targets; without one: all")
    parser.add_argument("--seconds", type=float, default=60, help="in all, about")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--no-rows", action="store_true", help="do not append to the results")
    asked = parser.parse_args()
    native = [p for p in sorted(_BUILD.glob("fuzz_*")) if not p.suffix]
    names = [each.name for each in targets()]
    chosen = [n for n in (*(p.name for p in native), *names) if not asked.names or n in asked.names]
    share = asked.seconds / max(len(chosen), 1)
    print(f"seed {asked.seed}, {share:.1f} s for each of {len(chosen)} targets")  # noqa: T201
    _BUILD.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in chosen:
        run = _native if name.startswith("fuzz_") else _python
        row = run(name, share, asked.seed)
        bad += bool(row["found"])
        print(json.dumps(row), flush=True)  # noqa: T201
        if not asked.no_rows:
            case = {"target": row.pop("target"), "seed": asked.seed}
            made = Row("fuzz", case, (row.pop("seconds"),), more=row)
            append(ROOT / "benchmarks/results/fuzz.jsonl", [made])
    return 1 if bad else 0


def _native(name: str, seconds: float, seed: int) -> dict[str, Any]:
    command = [str(_BUILD / name), "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + _SLACK, check=False
    )
    if done.returncode == 0:
        return {**json.loads(done.stdout), "found": []}
    sys.stderr.write(done.stderr)
    return {"target": name, "inputs": 0, "seconds": seconds, "found": [done.stderr[-300:]]}


def _python(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """Fuzz in a fresh process: one that dies is a finding, not the end."""
    context = multiprocessing.get_context("fork")
    hear, tell = context.Pipe(duplex=False)
    process = context.Process(target=_be_fuzzed, args=(name, seconds, seed, tell))
    process.start()
    tell.close()
    try:
        answer = hear.recv() if hear.poll(seconds + _SLACK) else None
    except EOFError:
        answer = None
    process.join(1)
    process.kill()
    process.join()
    if answer is None:
        return {"target": name, "inputs": 0, "seconds": seconds, "found": ["the process died"]}
    return dict(answer)


def _be_fuzzed(name: str, seconds: float, seed: int, tell: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    (target,) = (each for each in targets() if each.name == name)
    began = time.monotonic()
    outcome = fuzz(target, seconds=seconds, seed=seed)
    for number, (what, given) in enumerate(outcome.found.items()):
        kind = re.sub(r"\W+", "-", f"{name}-{what}")
        (_BUILD / f"{kind}-{number}.crash").write_bytes(given)
    tell.send(
        {
            "target": name,
            "inputs": outcome.inputs,
            "seconds": round(time.monotonic() - began, 1),
            "corpus": len(outcome.corpus),
            "lines": outcome.lines,
            "found": list(outcome.found),
        }
    )


if __name__ == "__main__":
    sys.exit(main())
