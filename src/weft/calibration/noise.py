"""Noise of a machine: the CPU time of other processes, and the spread of a repeated copy."""

import time
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from weft.hardware.measured import MeasuredNoise

_PROBE = 8 << 20  # bytes that the probe copies: more than the caches of a core
_TRIES = 3


def foreign_share(seconds: float = 0.1) -> float:
    """Return the share of this machine's cores that other processes use, while this one sleeps."""
    before = cpu_ticks()
    time.sleep(seconds)
    idle, total = (after - then for after, then in zip(cpu_ticks(), before, strict=True))
    return 1 - idle / total if total else 0.0


def cpu_ticks() -> tuple[int, int]:
    """Read the idle and all ticks of all cores; those of guests are counted in the first ones."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return 0, 0
    ticks = [int(word) for word in first.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


class NoiseMonitor:
    """Looks at the machine now and then while something else is measured."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._foreign: list[float] = []
        self._probes: list[float] = []
        self._source = np.ones(_PROBE // 8)
        self._copy = np.ones_like(self._source)
        self._probe()  # its pages are there from now on
        self.look()

    def look(self) -> None:
        """Sample the use of other processes, and time a copy."""
        self._foreign.append(foreign_share())
        self._probes.append(min(self._probe() for _ in range(_TRIES)))

    def _probe(self) -> float:
        begin = time.perf_counter()
        np.copyto(self._copy, self._source)
        return time.perf_counter() - begin

    def found(self) -> MeasuredNoise:
        """Return the noise that was measured."""
        low, _, high = quantiles([*self._probes, *self._probes], n=4, method="inclusive")
        seconds = time.perf_counter() - self._begin
        rounded = (
            float(f"{each:.3g}") for each in (median(self._foreign), high / low - 1, seconds)
        )
        return MeasuredNoise(*rounded)
