"""A piece of the long soak, recorded: many of them are the whole, run when there is time.

``python -m tests.soak.pieces STEPS`` appends what it found to the results of benchmarks.
"""

from __future__ import annotations

import sys
from collections import Counter
from time import perf_counter

from benchmarks.machine import append
from benchmarks.rows import Row
from tests.soak.driver import ROOT, lines_of
from tests.soak.growth import Held, grown

ASKS = 40  # different calls at every place


def piece(steps: int) -> Row:
    """Run a piece; every rank counts its calls and the ones that went wrong."""
    begin = perf_counter()
    reports = lines_of("tests.soak.traffic", steps, ASKS)
    seconds = perf_counter() - begin
    calls = sum((Counter(report["calls"]) for report in reports), Counter[str]())
    samples = [[Held(*sample) for sample in report["samples"]] for report in reports]
    case = {"ranks": len(reports), "steps": steps, "asks": ASKS}
    more = {
        "calls": calls.total(),
        "kinds": len(calls),
        "wrong": sum(len(report["wrong"]) for report in reports),
        "grown": [grown(each) for each in samples],
    }
    return Row("soak", case, (seconds,), more=more)


if __name__ == "__main__":
    append(ROOT / "benchmarks/results/soak.jsonl", [piece(int(sys.argv[1]))])
