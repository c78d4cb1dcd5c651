"""An executor that runs calls in order, in one thread."""

import queue
import threading
from collections.abc import Callable

from weft.errors import DisagreeError, NotDoneError, RunError

Act = Callable[[], None]


class SerialJob:
    """One call: wait for it before its memory is reused."""

    def __init__(self, act: Act) -> None:
        self._act: Act | None = act
        self._over = threading.Event()
        self._error: BaseException | None = None

    def is_done(self) -> bool:
        """Return whether it has ended, with or without an error."""
        return self._over.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait; raise its failure, or NotDoneError after the timeout."""
        if not self._over.wait(timeout):
            raise NotDoneError(
                f"a collective timed out: it was not done after {timeout:g} s.",
                "It is still running: wait for it again.",
            )
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        """Run it; release its memory afterwards."""
        act, self._act = self._act, None
        assert act is not None
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - wait() raises it
            self._error = error
        finally:
            self._over.set()


class SerialExecutor:
    """A queue of calls and a thread, which the first asynchronous call starts.

    A synchronous call with nothing before it runs in the calling thread.

    Threads: one at a time makes calls, as in a World; a second one gets a DisagreeError. Any thread
    may wait for a Job.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[SerialJob | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: SerialJob | None = None
        self._running = threading.Lock()  # held by the thread that runs a call
        self._asking = threading.Lock()  # protects the attributes below
        self._caller: int | None = None  # the thread inside a synchronous call
        self._closed = False

    def run(self, act: Act, *, async_op: bool) -> SerialJob | None:
        """Execute a call, now or in the thread."""
        me = threading.get_ident()
        with self._asking:
            if self._closed:
                raise RunError("the group was closed.", "Make a new group.")
            caller = self._caller
            if caller not in (None, me):
                raise DisagreeError(
                    "a collective is called while another thread of this rank is in one; threads "
                    "that make collective calls at once need a group each.",
                    "Every rank must make the same calls in the same order.",
                )
            is_next = self._last is None or self._last.is_done()
            job = None if is_next and not async_op else self._enqueue(act)
            if async_op:
                return job
            self._caller = me
        try:
            if job is not None:
                job.wait()
            else:
                with self._running:
                    act()
        finally:
            self._caller = caller
        return None

    def drain(self) -> None:
        """Wait for all calls of the thread, also failed ones."""
        last = self._last
        if last is not None and threading.current_thread() is not self._thread:
            last._over.wait()  # noqa: SLF001 - without raising its error

    def is_busy(self) -> bool:
        """Return whether a call of the thread has not ended."""
        return self._last is not None and not self._last.is_done()

    def has_other_caller(self) -> bool:
        """Return whether another thread is inside a synchronous call."""
        return self._caller not in (None, threading.get_ident())

    def wait_for_caller(self, timeout: float) -> None:
        """Wait until no thread runs a call, for ``timeout`` seconds at most."""
        if self._running.acquire(timeout=timeout):
            self._running.release()

    def close(self) -> None:
        """End the thread after its calls; later ones raise."""
        with self._asking:
            self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _enqueue(self, act: Act) -> SerialJob:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            thread.start()  # where the system has no thread left, there is no job to wait for
            self._thread = thread
        self._last = job = SerialJob(act)
        self._queue.put(job)
        return job

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._running:
                job.run()
