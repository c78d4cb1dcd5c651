"""The Work of a collective and its Future, as torch.distributed expects them."""

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from torch import Tensor
from torch.futures import Future

from weft.errors import NotDoneError
from weft.runtime.communicator import close_open_worlds
from weft.runtime.work import Work as RuntimeWork
from weft.torch.backend.c10d import Work

__all__ = ["COMPLETED", "FutureCompleter", "PendingWork", "Waitable"]


class Waitable(Protocol):
    """Anything in flight that can be waited for."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait; raise its failure, or NotDoneError after the timeout."""

    def is_done(self) -> bool:
        """Return whether ``wait`` would return at once."""


class CompletedWork(Work):
    """The Work of a synchronous call, which is complete."""

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - it is complete
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True: errors were raised by the call."""
        return True

    def exception(self) -> Any:
        """Return None."""
        return None

    def synchronize(self) -> None:
        """Return at once."""

    def result(self) -> list[Tensor]:
        """Return no tensors: the call was synchronous."""
        return []

    def get_future(self) -> "Future[Any]":
        """Return a completed future."""
        future: Future[Any] = Future()
        future.set_result([])
        return future


COMPLETED = CompletedWork()


class PendingWork(Work):
    """The Work of an asynchronous call. The first thread that waits copies results back."""

    def __init__(
        self,
        handles: Sequence[Waitable],
        tensors: list[Tensor],
        finish: Callable[[], None] | None,
        completer: "FutureCompleter",
    ) -> None:
        super().__init__()
        self._handles = handles
        self._tensors = tensors
        self._finish = finish
        self._completer = completer
        self._lock = threading.RLock()
        self._error: BaseException | None = None
        self._completed = False
        self._future: Future[Any] | None = None
        self._trigger: Future[None] | None = None  # triggers the future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done; raise its failure on every call."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        self._wait_for_all(seconds if seconds > 0 else None)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return whether ``wait`` would return at once."""
        return self._completed or all(handle.is_done() for handle in self._handles)

    def is_success(self) -> bool:
        """Return whether it completed without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Any:
        """Return the error of a completed work, None if it succeeded."""
        if self.is_completed():
            self._wait_for_all(None)
        return self._error

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Wait, then return the tensors that were written."""
        self.wait()
        return self._tensors

    def get_future(self) -> "Future[Any]":
        """Return a future; a thread of the group completes it if it is not done yet."""
        with self._lock:
            if self._future is None:
                self._make_progress(self._completer.progress_seconds)
                self._future = self._done_future() if self.is_completed() else self._later()
            return self._future

    def complete(self) -> None:
        """Wait, then trigger the future."""
        self._wait_for_all(None)
        assert self._trigger is not None
        self._trigger.set_result(None)

    def _done_future(self) -> "Future[Any]":
        self._wait_for_all(None)
        if self._error is not None:
            future = self._then()
            self.complete()
            return future
        future = Future()
        future.set_result(self._tensors)
        return future

    def _later(self) -> "Future[Any]":
        future = self._then()
        self._completer.complete_later(self)
        return future

    def _then(self) -> "Future[Any]":
        """Return a future that gets the result when it is triggered.

        A chained future fails in C++, too. ``set_exception`` would raise in Python only, and DDP,
        which waits in C++, would use the error as its tensors.
        """
        self._trigger = Future()
        return self._trigger.then(lambda _: self._outcome())

    def _outcome(self) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors

    def _make_progress(self, seconds: float) -> None:
        """Make progress here first: the caller of ``get_future`` needs the result soon."""
        for handle in self._handles if seconds > 0 else ():
            if isinstance(handle, RuntimeWork):
                handle.make_progress(seconds)

    def _wait_for_all(self, seconds: float | None) -> None:
        for handle in self._handles:  # outside the lock: other threads may test meanwhile
            if self._completed:
                return
            self._wait_for(handle, seconds)
        with self._lock:
            if not self._completed:
                if self._finish is not None and self._error is None:
                    self._copy_results(self._finish)
                self._completed = True

    def _copy_results(self, finish: Callable[[], None]) -> None:
        try:
            finish()
        except Exception as error:  # noqa: BLE001 - wait() or the future raises it
            self._error = error

    def _wait_for(self, handle: Waitable, seconds: float | None) -> None:
        try:
            handle.wait(seconds)
        except Exception as error:
            if isinstance(error, NotDoneError):
                raise  # still in flight: only this wait is over
            with self._lock:
                self._error = self._error or error


class FutureCompleter:
    """A thread that completes futures of works; the first future starts it.

    ``progress_seconds`` is how long the thread that asks for a future makes progress itself before
    the work is left to this one. Threads: any may add works.
    """

    def __init__(self, progress_seconds: float = 0.0) -> None:
        self.progress_seconds = progress_seconds
        self._works: queue.SimpleQueue[PendingWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def complete_later(self, work: PendingWork) -> None:
        """Add a work that the thread waits for."""
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="weft-futures", daemon=True)
                thread.start()
                self._thread = thread  # one that did not start could not be joined
                _serving.add(self)
            self._works.put(work)

    def close(self) -> None:
        """End the thread after its works; a callback in it may close it, too."""
        if self._thread is not None:
            self._works.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join()
            self._thread = None
            _serving.discard(self)

    def _serve(self) -> None:
        while (work := self._works.get()) is not None:
            work.complete()


_serving: "weakref.WeakSet[FutureCompleter]" = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """End threads that wait in native code: the interpreter cannot end them there."""
    close_open_worlds()  # ends all waits for works in flight
    for completer in list(_serving):
        completer.close()


os.register_at_fork(after_in_child=_serving.clear)  # threads are not forked
