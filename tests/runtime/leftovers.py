"""What a world could leave behind: files in shared memory, processes, threads."""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
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
    """This process's children and its fork server's; the server itself and Python's tracker,
    which it keeps to its end, are none."""
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    server = getattr(forkserver._forkserver, "_forkserver_pid", None)
    return (_children_of("self") | _children_of(str(server))) - {tracker, server}


def _children_of(process: str) -> set[int]:
    text = " ".join(p.read_text() for p in Path(f"/proc/{process}/task").glob("*/children"))
    return {int(pid) for pid in text.split()}


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
    assert eventually(lambda: children() == set(), 1), children()
    assert eventually(lambda: threads() <= before, 1)
