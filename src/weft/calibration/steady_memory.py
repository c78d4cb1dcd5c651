"""Allocator settings for processes with few page faults, for measurements."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver
from typing import Any

from weft.calibration.microbenchmarks import changed

# Pieces of any size come from one heap that never shrinks and grows in large steps: page faults
# of a training step fall to a fifth.
SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "OMP_NUM_THREADS": "1",
}


def steady_memory() -> AbstractContextManager[None]:
    """Make processes that are started inside keep their memory and use one thread."""
    return changed(SETTINGS)


@contextmanager
def forked_ranks(modules: Sequence[str]) -> Iterator[None]:
    """Fork ranks that are started inside from a process that has loaded ``modules``.

    Loading torch takes seconds, and a calibration starts a dozen pairs of ranks.
    """
    before = multiprocessing.get_start_method(allow_none=True)
    with steady_memory():
        multiprocessing.set_start_method("forkserver", force=True)
        multiprocessing.set_forkserver_preload(list(modules))
        with _no_interrupts():
            forkserver.ensure_running()
        try:
            yield
        finally:
            multiprocessing.set_start_method(before, force=True)
            server: Any = forkserver
            server._forkserver._stop()  # noqa: SLF001 - there is no other way to end it


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Make processes that are started inside ignore Ctrl-C: this one ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
