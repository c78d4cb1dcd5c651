"""What this machine is: measurements are believed only where it is the same."""

import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from weft.hardware.quantity import Bytes, Count


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as a file remembers it: the model of its CPU, its cores, its memory."""

    cpu: str
    cores: Count
    memory: Bytes

    def is_like(self, other: "Machine") -> bool:
        """Return whether both are the same; a new kernel may reserve a little more memory."""
        same = (self.cpu, self.cores) == (other.cpu, other.cores)
        return same and math.isclose(self.memory, other.memory, rel_tol=0.05)

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cores} cores, {self.memory / 2**30:.0f} GiB"


def this_machine() -> Machine:
    """Return what this machine is: its CPU, cores and memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(cpu_model(), os.cpu_count() or 1, memory)


def cpu_model() -> str:
    """Return the name of the CPU as the kernel has it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    models = [line.split(":", 1)[1] for line in text.splitlines() if line.startswith("model name")]
    return models[0].strip() if models else platform.processor()


def cache_bytes() -> tuple[int, int]:
    """Return the sizes of a core's own cache and of the last one, as the kernel tells them.

    Where it tells nothing they are those of a plain server.
    """
    found = {1: 0, 2: 512 << 10, 3: 32 << 20}
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, size = (_word(entry / name) for name in ("level", "size"))
        if level.isdigit() and size.endswith("K") and size[:-1].isdigit():
            found[int(level)] = int(size[:-1]) << 10
    return found[2], found[3]


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
