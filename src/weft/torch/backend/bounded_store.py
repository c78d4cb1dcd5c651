"""A store of torch.distributed whose calls end by a deadline.

The client of a TCPStore waits for its server without one. The server is a thread of rank 0: if
that process is stopped, or its host is gone, the call of every other rank would never return.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from weft.errors import RunTimeoutError
from weft.torch.backend.c10d import Store

T = TypeVar("T")
# Seconds for an answer that need not wait for other ranks, even if the group waits longer: a new
# group has a timeout of 30 minutes unless it is told otherwise.
_ANSWER_SECONDS = 30.0
_FIRST_POLL, _LAST_POLL = 1e-3, 50e-3  # seconds between looks at keys of other ranks


class StoreUnreachableError(RunTimeoutError):
    """The process that holds the store does not answer."""


class KeysMissingError(RunTimeoutError):
    """The ranks that should write some keys did not; ``keys`` are those."""

    def __init__(self, message: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


class BoundedStore:
    """Makes the calls of a store in threads of their own. Threads: any may call it.

    Keys of other ranks are waited for up to ``timeout``, an answer of the store up to that of the
    default group, at most half a minute.
    """

    def __init__(self, store: Store, timeout: timedelta) -> None:
        self._store, self._seconds = store, timeout.total_seconds()
        default = getattr(dist.group.WORLD, "timeout", timeout)
        self._answer_seconds = min(self._seconds, default.total_seconds(), _ANSWER_SECONDS)

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        self._bounded(lambda: self._store.set(key, value))

    def wait_for(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of keys, as soon as all exist."""
        deadline, pause = time.monotonic() + self._seconds, _FIRST_POLL
        while not self.check(keys):
            if time.monotonic() > deadline:
                missing = tuple(key for key in keys if not self.check([key]))
                raise KeysMissingError(f"no values of {', '.join(missing)}.", missing)
            time.sleep(pause)
            pause = min(2 * pause, _LAST_POLL)
        return self._bounded(lambda: self._store.multi_get(list(keys)))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether there are values of all these keys."""
        return self._bounded(lambda: self._store.check(list(keys)))

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Write a value if the present one is as expected; return the value then."""
        return self._bounded(lambda: self._store.compare_set(key, expected, value))

    def _bounded(self, act: Callable[[], T]) -> T:
        return answered(act, self._answer_seconds)


def answered(act: Callable[[], T], seconds: float) -> T:
    """Return what ``act``, which asks a store, returns; raise if it takes longer."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)

    # A daemon: a call that never returns does not keep the process alive.
    thread = threading.Thread(target=run, name="weft store", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise StoreUnreachableError(
            f"the store did not answer within {seconds:g} s: the process that "
            "holds it (rank 0 of the job, or its launcher) is stopped or unreachable."
        )
    if errors:
        raise errors[0]
    return results[0]
