"""The long soak: ``python -m tests.soak --minutes 60``.

Pieces in turn, each a program of its own: several collectives in flight, ranks
that are killed, stopped or raise, worlds made and ended; all next to a process that keeps a core
busy. A byte that is wrong, a survivor told the wrong thing, or anything that grows or stays ends
it with 1. A line for all of it is appended to the results.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.machine import append
from benchmarks.rows import Row
from tests.runtime.leftovers import files, nothing_left, threads
from tests.soak.driver import ROOT, lines_of
from tests.soak.growth import Held, grown, held
from weft._core import die_with

Tally = Counter[str]


def traffic(steps: int) -> tuple[Tally, list[str]]:
    """Mixed collectives on four ranks; what grew counts as wrong."""
    reports = lines_of("tests.soak.traffic", steps, 40)
    calls = sum(sum(report["calls"].values()) for report in reports)
    wrong = [line for report in reports for line in report["wrong"]]
    return Counter(calls=calls), wrong + _growth(reports)


def trouble(count: int) -> tuple[Tally, list[str]]:
    """Ranks that come to harm; every survivor must be told who and where."""
    trials = lines_of("tests.soak.trouble", count, "torch")
    wrong = [line for trial in trials for line in trial["wrong"]]
    told = Counter(answer["kind"] for trial in trials for answer in trial["answers"])
    return Counter(troubles=len(trials), **told), wrong


def worlds(count: int) -> tuple[Tally, list[str]]:
    """Worlds made and ended by the same processes."""
    reports = lines_of("tests.soak.worlds", count)
    wrong = [f"{report['wrong']} wrong sums" for report in reports if report["wrong"]]
    return Counter(worlds=count), wrong + _growth(reports)


def _growth(reports: list[dict[str, Any]]) -> list[str]:
    samples = ([Held(*sample) for sample in report["samples"]] for report in reports)
    return [worse for each in samples if (worse := grown(each))]


# How much of each: about a minute on two cores that have nothing else to do.
PIECES: tuple[tuple[Callable[[int], tuple[Tally, list[str]]], int], ...] = (
    (traffic, 6_000),
    (trouble, 9),
    (worlds, 400),
)


def soak(minutes: float, *, keep: bool) -> int:
    """Run pieces until the time is over; say what each found."""
    began, total, wrong = time.monotonic(), Tally(), list[str]()
    mine, number = held(), 0
    with nothing_left():
        while time.monotonic() - began < minutes * 60 and not wrong:
            run, size = PIECES[number % len(PIECES)]
            tally, bad = run(size)
            total += tally
            wrong += bad + [f"left in shared memory: {left}" for left in files()]
            _say({"at": round(time.monotonic() - began), "piece": run.__name__, **tally})
            number += 1
    after = held()
    if after.descriptors > mine.descriptors or threads() > mine.threads:
        wrong.append(f"the driver held {mine}, and at the end {after}")
    seconds = time.monotonic() - began
    more = {**total, "pieces": number, "wrong": wrong}
    _say({"seconds": round(seconds), **more})
    if keep:
        case = {"kind": "mixed", "busy": 1}
        append(ROOT / "benchmarks/results/soak.jsonl", [Row("soak", case, (seconds,), more=more)])
    return 1 if wrong else 0


def _say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)  # noqa: T201


def next_to_a_busy_core(work: Callable[[], int]) -> int:
    """Keep one process computing while ``work`` goes on in another, which has no children yet."""
    parent = os.getpid()
    busy = os.fork()
    if busy == 0:
        die_with(parent)
        while True:
            pass
    worker = os.fork()
    if worker == 0:
        code = 1
        try:
            die_with(parent)
            code = work()
        except BaseException:  # noqa: BLE001 - said, and the code is 1
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(worker, 0)
    os.kill(busy, signal.SIGKILL)
    os.waitpid(busy, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> int:
    """Read how long, and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--no-row", action="store_true", help="do not append to the results")
    asked = parser.parse_args()
    return next_to_a_busy_core(lambda: soak(asked.minutes, keep=not asked.no_row))


if __name__ == "__main__":
    sys.exit(main())
