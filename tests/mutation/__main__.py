"""Do the tests notice? ``python -m tests.mutation --count 40 [--seed N] [PACKAGE..]``.

A sample of small wrong changes of the packages below, one at a time, each against the tests of its
package. A change that no test notices is a survivor: it is printed, to be killed by a test, or
explained in docs/notes/hardening.md. Nothing is written to the sources.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.mutation.sites import Site, sites

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "schedule": ("tests/schedule", "tests/collectives"),
    "simulator": ("tests/simulator",),
    "step": ("tests/step", "tests/planner"),
    "planner": ("tests/planner", "tests/cli/test_plan.py", "tests/cli/test_predict.py"),
}
_QUICK = "not (multiprocess or torch or triton or netns or browser or slow)"
# A change that makes a test run forever was noticed. What counts is the processor's time: next to
# other work the tests of a survivor may take many times as long by the clock.
_LIMIT = 240  # seconds of a processor
_TIMEOUT = 1800.0  # seconds by the clock, for a test that waits and computes nothing


def main() -> int:
    """Draw, run, count; the exit code says nothing: survivors are for people to look at."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("packages", nargs="*", default=list(PACKAGES))
    parser.add_argument("--count", type=int, default=40, help="changes of each package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no change after that")
    asked = parser.parse_args()
    end = time.monotonic() + asked.minutes * 60
    for package in asked.packages:
        drawn = _drawn(package, asked.count, asked.seed)
        killed = survived = 0
        for module, site in drawn:
            if time.monotonic() > end:
                break
            if _notices(module, site, PACKAGES[package]):
                killed += 1
            else:
                survived += 1
                print(f"survived: {module}:{site.number} line {site.line}: {site.what}", flush=True)  # noqa: T201
        print(json.dumps({"package": package, "killed": killed, "survived": survived}), flush=True)  # noqa: T201
    return 0


def _drawn(package: str, count: int, seed: int) -> list[tuple[str, Site]]:
    files = sorted((ROOT / "src/weft" / package).glob("*.py"))
    every = [
        (f"weft.{package}.{path.stem}", site)
        for path in files
        if path.stem != "__init__"
        for site in sites(path.read_text(encoding="utf-8"))
    ]
    random.Random(f"{seed} {package}").shuffle(every)
    return every[:count]


def _notices(module: str, site: Site, tests: tuple[str, ...]) -> bool:
    """Whether a test fails with the change; new random inputs would make that an accident."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.mutation.plugin", "-x", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-m", _QUICK, *tests]
    environment = {**os.environ, "WEFT_MUTANT": f"{module}:{site.number}", "CI": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (_LIMIT, _LIMIT)),
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
