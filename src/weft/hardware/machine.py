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
        """Tell whether both are the same; a new kernel may keep a little more memory to itself."""
        same = (self.cpu, self.cores) == (other.cpu, other.cores)
        return same and math.isclose(self.memory, other.memory, rel_tol=0.05)

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cores} cores, {self.memory / 2**30:.0f} GiB"


def this_machine() -> Machine:
    """Look at this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(cpu_model(), os.cpu_count() or 1, memory)


def cpu_model() -> str:
    """Give the name of the CPU as the kernel has it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    models = [line.split(":", 1)[1] for line in text.splitlines() if line.startswith("model name")]
    return models[0].strip() if models else platform.processor()
