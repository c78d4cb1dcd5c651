"""Run PyTorch's distributed tests on Gloo and on weft, and compare: -m tests.torch_suite.

Each backend and number of ranks is a process of its own, whose outcomes are a line of JSON a test.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.torch_suite.differences import DIFFERENCES

Outcomes = dict[str, tuple[str, str]]
BACKENDS = ("gloo", "weft")
_SECONDS_A_TEST = "60"  # more than any takes on two busy cores


def outcomes_of(backend: str, num_ranks: int, names: list[str]) -> Outcomes:
    """Return the outcome of each test on a backend; without names, of all."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "BACKEND": backend,
            "WORLD_SIZE": str(num_ranks),
            "TEMP_DIR": folder,
            "INIT_METHOD": f"file://{folder}/shared_init_file",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": _SECONDS_A_TEST,
            "OMP_NUM_THREADS": "1",
        }
        found: Outcomes = {}
        with (Path(folder) / "log").open("w+", encoding="utf-8") as log:
            with subprocess.Popen(
                [sys.executable, "-m", "tests.torch_suite.run", *names],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith('{"test"'):
                        row = json.loads(line)
                        found[row["test"]] = (row["outcome"], row["why"])
            if process.returncode:
                log.seek(0)
                raise SystemExit(f"the tests on {backend} did not run:\n{log.read()[-4000:]}")
    return found


def unexplained(gloo: Outcomes, weft: Outcomes) -> Outcomes:
    """Return the tests that Gloo passes and weft does not, apart from known differences."""
    return {
        name: weft.get(name, ("missing", ""))
        for name, (outcome, _) in gloo.items()
        if outcome == "passed" and weft.get(name, ("",))[0] != "passed" and name not in DIFFERENCES
    }


def main() -> int:
    """Compare the backends at each number of ranks; 1 if weft fails what Gloo passes."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch_suite", description=__doc__)
    parser.add_argument("tests", nargs="*", help="parts of names of tests; without any, all")
    parser.add_argument("--ranks", default="2,3,4", help="numbers of ranks")
    parser.add_argument("-o", "--output", type=Path, help="append outcomes here, JSON lines")
    options = parser.parse_args()
    failed = 0
    for ranks in map(int, options.ranks.split(",")):
        found = {name: outcomes_of(name, ranks, options.tests) for name in BACKENDS}
        for name, outcomes in found.items():
            counts = [
                sum(each == outcome for each, _ in outcomes.values())
                for outcome in ("passed", "skipped", "failed")
            ]
            print("{} ranks, {}: {} passed, {} skipped, {} failed".format(ranks, name, *counts))
            if options.output:
                row = {"ranks": ranks, "backend": name, "outcomes": outcomes}
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        for name, (outcome, why) in unexplained(found["gloo"], found["weft"]).items():
            failed += 1
            print(f"  {name} {outcome} on weft: {why[-1000:]}")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
