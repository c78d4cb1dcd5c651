"""What torch.distributed hands back for a collective: a Work, and the Future inside it."""

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
    """Something under way in a world."""

    def wait(self, timeout: float | None = None) -> None:
        """Return when it is done; raise how it failed, or that it takes longer."""

    def is_done(self) -> bool:
        """Whether wait would return at once."""


class CompletedWork(Work):
    """What was carried out before the call returned: nothing is left to ask."""

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - it took its time
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Say that it is done."""
        return True

    def is_success(self) -> bool:
        """Say that it went well: what goes wrong at once is raised at once."""
        return True

    def exception(self) -> Any:
        """Give nothing."""
        return None

    def synchronize(self) -> None:
        """Return at once."""

    def result(self) -> list[Tensor]:
        """Give nothing: who did not ask for a Work has the tensors."""
        return []

    def get_future(self) -> "Future[Any]":
        """Give a future that is done."""
        future: Future[Any] = Future()
        future.set_result([])
        return future


COMPLETED = CompletedWork()


class PendingWork(Work):
    """What runs in the background. Whoever waits first finishes it: copies results to strides."""

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
        self._trigger: Future[None] | None = None  # what a future follows that is not done yet

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it is done; raise how it failed, each time it is asked."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        self._wait_for_all(seconds if seconds > 0 else None)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether wait would return at once."""
        return self._completed or all(handle.is_done() for handle in self._handles)

    def is_success(self) -> bool:
        """Whether it is done and went well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Any:
        """Give how it failed, if it is over and did."""
        if self.is_completed():
            self._wait_for_all(None)
        return self._error

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Wait, then give the tensors that were written."""
        self.wait()
        return self._tensors

    def get_future(self) -> "Future[Any]":
        """Give a future that a thread of the group completes, unless it is done by now."""
        with self._lock:
            if self._future is None:
                self._make_progress(self._completer.progress_seconds)
                self._future = self._done_future() if self.is_completed() else self._later()
            return self._future

    def complete(self) -> None:
        """Wait, and tell the future."""
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
        """Give a future that has the outcome when it is told.

        One that follows another fails as C++ does. ``set_exception`` would only make Python raise,
        and DDP, which waits in C++, take the error for its tensors.
        """
        self._trigger = Future()
        return self._trigger.then(lambda _: self._outcome())

    def _outcome(self) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors

    def _make_progress(self, seconds: float) -> None:
        """Carry it out here if the others come soon: who asks for a future wants its result."""
        for handle in self._handles if seconds > 0 else ():
            if isinstance(handle, RuntimeWork):
                handle.make_progress(seconds)

    def _wait_for_all(self, seconds: float | None) -> None:
        for handle in self._handles:  # outside the lock: others may look meanwhile
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
        except Exception as error:  # noqa: BLE001 - whoever waits, or its future, raises it
            self._error = error

    def _wait_for(self, handle: Waitable, seconds: float | None) -> None:
        try:
            handle.wait(seconds)
        except Exception as error:
            if isinstance(error, NotDoneError):
                raise  # it goes on: only this wait is over
            with self._lock:
                self._error = self._error or error


class FutureCompleter:
    """A thread that waits for works whose futures somebody asked for; started by the first.

    ``progress_seconds`` is how long the thread that asks for a future makes progress itself before
    the work is left to this one.
    """

    def __init__(self, progress_seconds: float = 0.0) -> None:
        self.progress_seconds = progress_seconds
        self._works: queue.SimpleQueue[PendingWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def complete_later(self, work: PendingWork) -> None:
        """Let the thread wait for this work."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="weft-futures", daemon=True)
            self._thread.start()
            _serving.add(self)
        self._works.put(work)

    def close(self) -> None:
        """End the thread after what it has been given."""
        if self._thread is not None:
            self._works.put(None)
            self._thread.join()
            self._thread = None
            _serving.discard(self)

    def _serve(self) -> None:
        while (work := self._works.get()) is not None:
            work.complete()


_serving: "weakref.WeakSet[FutureCompleter]" = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """End what waits in native code: a thread that the interpreter ends there ends it badly."""
    close_open_worlds()  # nobody waits longer for what was under way
    for completer in list(_serving):
        completer.close()


os.register_at_fork(after_in_child=_serving.clear)  # threads are not forked
