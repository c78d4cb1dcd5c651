"""What a world could leave behind: files in shared memory, processes, threads."""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARED_MEMORY = Path("/dev/shm")


def files() -> set[str]:
    """What nobody owns, or this process does; others may have worlds of their own."""
    found = {path.name for path in SHARED_MEMORY.glob("weft-*") if _has_no_owner(path)}
    return found | {name for name in _open_here() if "/weft-" in name}


def _has_no_owner(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _open_here() -> Iterator[str]:
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            yield str(path.readlink())


def children() -> set[int]:
    """This process's children; Python's own tracker, which it keeps to its end, is none."""
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    text = " ".join(p.read_text() for p in Path("/proc/self/task").glob("*/children"))
    return {int(pid) for pid in text.split()} - {tracker}


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def eventually(holds: Callable[[], bool], seconds: float = 20) -> bool:
    """Look again and again, for what ends in its own time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def nothing_left() -> Iterator[None]:
    before = threads()
    yield
    assert eventually(lambda: not files(), 1), files()
    assert children() == set()
    assert eventually(lambda: threads() <= before, 1)
