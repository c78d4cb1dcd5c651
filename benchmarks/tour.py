"""How long the tour takes from start to end, and whether it ends well."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from benchmarks.rows import Options, Row
from weft.local_runs.parent_death import leashed

QUESTION = "How long does the tour take, and does it end well, also with a core busy?"
LIMIT = 120.0  # seconds, of one run on a calm machine
_GIVEN_UP = 600.0


def run(options: Options) -> Iterator[Row]:
    """Take the tour again and again; the first one of each kind measures the machine anew."""
    for busy in (False, True):
        with _busy_core() if busy else nullcontext():
            taken = [_tour(again=number == 0) for number in range(options.rounds)]
        codes = [code for _, code in taken]
        first, *others = (seconds for seconds, _ in taken)
        row = Row("tour", {"busy": busy, "calibrated": False}, (first,))
        row.more.update(exits=codes[:1], limit=LIMIT, met=codes[0] == 0 and first < LIMIT)
        yield row
        if others:
            row = Row("tour", {"busy": busy, "calibrated": True}, tuple(others))
            met = not any(codes[1:]) and max(others) < LIMIT
            row.more.update(exits=codes[1:], limit=LIMIT, met=met)
            yield row


def count_rows(options: Options) -> int:
    """Count what ``run`` will give."""
    return 4 if options.rounds > 1 else 2


def _tour(*, again: bool) -> tuple[float, int]:
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        words = [
            sys.executable,
            "-m",
            "weft",
            "tour",
            "-o",
            folder,
            *(["--again"] if again else []),
        ]
        begin = time.perf_counter()
        done = subprocess.run(words, stdout=subprocess.DEVNULL, timeout=_GIVEN_UP, check=False)
        return time.perf_counter() - begin, done.returncode


@contextmanager
def _busy_core() -> Iterator[None]:
    """Keep a core busy in another process."""
    with subprocess.Popen(leashed([sys.executable, "-c", "while True: pass"])) as other:
        try:
            yield
        finally:
            other.kill()
