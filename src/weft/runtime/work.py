"""The handle of an asynchronous collective."""

from collections.abc import Callable
from typing import Any

from weft.errors import NotDoneError
from weft.runtime.communicator import Communicator


class Work:
    """A collective submitted to the world's worker: wait for it before its memory is reused."""

    __slots__ = ("_call", "_comm", "_job", "_keep", "_where")

    def __init__(
        self, comm: Communicator, job: int, call: str, where: Callable[[int], str], keep: Any
    ) -> None:
        self._comm = comm
        self._job = job
        self._call = call
        self._where = where
        self._keep = keep  # keeps the arrays alive until the job is done

    def is_done(self) -> bool:
        """Return whether it has ended, also by a failure, which ``wait`` raises."""
        return self._comm.member.is_done(self._job)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is done; raise its failure, or NotDoneError after ``timeout`` seconds."""
        # A job ends by its own deadline, after those before it. A timeout of 0 polls once.
        seconds = 1e9 if timeout is None else max(timeout, 1e-9)
        done, abort = self._comm.member.wait_job(self._job, seconds)
        if abort is not None:
            self._comm.raise_abort(abort, self._where)
        if not done:
            missing = self._comm.member.missing(-1)
            raise NotDoneError(
                f"{self._call} timed out: it was not done after {timeout:g} s{missing}.",
                "It is still running: wait for it again.",
            )
        self._keep = None

    def make_progress(self, seconds: float) -> None:
        """Make progress until the work is done, for ``seconds`` at most."""
        self._comm.member.make_progress(self._job, seconds)

    def __repr__(self) -> str:
        return f"<Work: {self._call}, {'done' if self.is_done() else 'in flight'}>"
