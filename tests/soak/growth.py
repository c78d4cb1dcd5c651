"""What a process holds: private memory, shared memory, descriptors, threads."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple


class Held(NamedTuple):
    """At one moment."""

    private: int  # bytes
    shared: int  # bytes of the segments that it has open
    descriptors: int
    threads: int


def held() -> Held:
    """Look, after malloc gave back what it keeps for later.

    Tensors of ever new sizes between small things that stay leave holes: malloc holds 90 MB more
    after 10,000 of them while what is in use stays the same to 1 %.
    """
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    private = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    files = [path for path in Path("/proc/self/fd").iterdir() if path.exists() or path.is_symlink()]
    segments = {}
    for path in files:
        with suppress(OSError):
            if "/weft-" in str(path.readlink()):
                info = path.stat()
                segments[info.st_ino] = info.st_blocks * 512
    threads = len(list(Path("/proc/self/task").iterdir()))
    return Held(int(private.split()[1]) << 10, sum(segments.values()), len(files), threads)


def grown(samples: list[Held]) -> str:
    """Return what the last quarter of a run holds more than the second quarter, if it is more.

    The first quarter warms up: caches fill. Private memory moves by some megabytes with the
    schedules that are prepared at the moment; a leak of 200 bytes a call would be 10 MB in
    50,000 calls, and of a whole operand far more.
    """
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    slack = Held(private=10 << 20, shared=24 << 20, descriptors=0, threads=0)
    worse = []
    for name, more in slack._asdict().items():
        before, after = (median(getattr(each, name) for each in part) for part in (early, late))
        if after > before + more:
            worse.append(f"{name} grew from {before} to {after}")
    return "; ".join(worse)
