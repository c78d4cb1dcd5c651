"""What works on this machine, determined without slow imports."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from weft.units import format_size

State = Literal["on", "off", "broken"]
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder itself is examined, nothing is written there


@dataclass(frozen=True, slots=True)
class Finding:
    """One component: whether it is available, and details."""

    name: str
    state: State
    detail: str

    def as_row(self) -> dict[str, Any]:
        """Return the keys of a result."""
        return asdict(self)


def examine(num_ranks: int) -> Iterator[Finding]:
    """Yield everything that determines which features of weft are available."""
    core = _core()
    torch, triton = _package("torch"), _package("triton")
    shared = _shared_memory()
    yield Finding("python", "on", f"{platform.python_version()}, {platform.platform()}")
    yield core
    yield torch
    yield triton
    yield _cores(num_ranks)
    yield shared
    gpus = _gpus()
    yield gpus
    yield _path("simulate: predict on any platform", core)
    yield _path("run: processes on this machine", core, shared)
    yield _path("torch.distributed backend", core, torch)
    yield _path("Triton kernels on GPUs", torch, triton, gpus)


def _core() -> Finding:
    try:
        import_module("weft._core")
    except ImportError as error:
        return Finding("native core", "broken", f"{error}. Run: make install")
    return Finding("native core", "on", "loads")


def _package(name: str) -> Finding:
    try:
        return Finding(name, "on", version(name))
    except PackageNotFoundError:
        return Finding(name, "off", f"not installed. Run: pip install {name}")


def _cores(num_ranks: int) -> Finding:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    each = f"{cores / num_ranks:g} per rank with {num_ranks} ranks"
    return Finding("cores", "on", f"{cores} ({each}), {format_size(memory)} of memory")


def _shared_memory() -> Finding:
    try:
        space = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        return Finding("shared memory", "off", f"{SHARED_MEMORY}: {error.strerror}")
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    return Finding("shared memory", "on", f"{format_size(free)} of {format_size(total)} free")


def _gpus() -> Finding:
    """Query the vendors' tools, which are installed with their drivers."""
    names = [line.split("(")[0].strip() for line in _lines_of("nvidia-smi", "-L")]
    names += rocm_gpus(_lines_of("rocminfo"))
    if not names:
        return Finding("GPUs", "off", "none found by nvidia-smi or rocminfo")
    return Finding("GPUs", "on", ", ".join(names))


def rocm_gpus(lines: Sequence[str]) -> list[str]:
    """Return the names of the GPUs that ``rocminfo`` lists; its other agents are CPUs."""
    found: list[str] = []
    name = ""
    for line in lines:
        key, _, value = line.strip().partition(":")
        if key == "Marketing Name":
            name = value.strip()
        elif key == "Device Type" and value.strip() == "GPU":
            found.append(name)
    return found


def _lines_of(*command: str) -> list[str]:
    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command line
            command, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def _path(name: str, *needs: Finding) -> Finding:
    missing = [need.name for need in needs if need.state != "on"]
    if missing:
        return Finding(name, "off", f"needs {' and '.join(missing)}")
    return Finding(name, "on", "")
