"""Failures of a world: reported by one rank, raised as an error on all of them.

The native core composes the texts (``fault_text.hpp``), because a call may fail while nobody waits
for it in Python.
"""

import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from weft._core import AbortCause, FaultReason, Member
from weft.errors import DisagreeError, RankDiedError, RunError, RunTimeoutError, UsageError

_MAX_NOTED = 32  # lines of the flight recorder in a traceback
# Why a rank stopped waiting: cause, rank, row, and how many signals it had and wanted.
AbortTuple = tuple[int, int, int, int, int]
# Causes that are not of this rank: errors add where it waited.
_OF_OTHERS = (AbortCause.FAULT, AbortCause.STOPPED, AbortCause.DIED, AbortCause.LEFT)


ERRORS: dict[FaultReason, type[RunError]] = {
    FaultReason.RAISED: RunError,
    FaultReason.TIMEOUT: RunTimeoutError,
    FaultReason.DIED: RankDiedError,
    FaultReason.DISAGREE: DisagreeError,
}


def require_timeout(seconds: float) -> None:
    """Raise unless a timeout is positive."""
    if not seconds > 0:  # also refuses NaN
        raise UsageError(f"timeout: must be positive (got {seconds}).")


class CallScope:
    """A context manager of the thread that makes the collective calls of a rank.

    The same thread may enter it again. For a second thread the world fails with a DisagreeError:
    ranks cannot agree on an order of calls that two threads make at once.
    """

    __slots__ = ("_call", "_faults")

    def __init__(self, faults: "Faults", call: str) -> None:
        self._faults = faults
        self._call = call

    def __enter__(self) -> None:
        if not self._faults.member.try_enter_call():
            self._faults.raise_second_thread(self._call)

    def __exit__(self, *_: object) -> None:
        self._faults.member.leave_call()


class Faults:
    """Reports failures of this rank to the others, and raises those that they report.

    After a fault (a rank died, raised or timed out) every call on every rank raises it.
    """

    def __init__(self, member: Member, rank: int, timeout: float) -> None:
        self.member = member
        self.rank = rank
        self.num_ranks = member.num_ranks
        self.timeout = timeout
        self._closed = ""  # why this world cannot be used any more

    def recent(self, most: int = 8) -> tuple[str, ...]:
        """Return the last calls of every rank from the flight recorder, which keeps 64."""
        lines = []
        for rank in range(self.num_ranks):
            latest, ended = self.member.last_call(rank)
            for number in range(max(latest - most, 0) + 1, latest + 1):
                if text := self.member.call(rank, number):
                    state = "done" if number <= ended else "under way"
                    lines.append(f"rank {rank} call {number}: {text}, {state}")
        return tuple(lines)

    def fail(self, reason: FaultReason, rank: int, text: str) -> None:
        """Report a fault: every rank that waits stops and raises it."""
        self.member.fail(reason, rank, text.encode())

    def fail_with(self, error: BaseException, doing: str = "") -> None:
        """Report that this rank raised ``error``."""
        what = "".join(traceback.format_exception_only(error)).strip().removesuffix(".")
        self.fail(FaultReason.RAISED, self.rank, f"rank {self.rank} raised {what}{doing}")

    def require_healthy(self) -> None:
        """Raise if this world is closed or has a fault."""
        if self._closed:
            raise RunError(self._closed)
        self._raise_fault("")

    def exclusive(self, call: str) -> CallScope:
        """Return a context in which this thread makes collective calls."""
        return CallScope(self, call)

    def raise_second_thread(self, call: str) -> NoReturn:
        """Fail: this thread makes a collective call while another one is in a call.

        A closed world only raises. So does a forked child, which inherits the mark of its parent's
        thread and must not fail the parent's world.
        """
        self.require_healthy()
        self.raise_abort((AbortCause.THREADS, self.rank, -1, 0, 0), lambda _: call)

    def raise_abort(self, abort: AbortTuple, where: Callable[[int], str]) -> NoReturn:
        """Raise why this rank stopped waiting, here and on every other rank."""
        cause, _, row, _, _ = abort
        place = where(row)
        if cause == AbortCause.STOPPED and self._closed:
            raise RunError(f"{place} was interrupted: {self._closed}")
        self.member.report(abort, place)
        waited = f" while rank {self.rank} waited at {place}" if cause in _OF_OTHERS else ""
        self._raise_fault(waited)
        raise RunError(f"an engine stopped{waited}.")  # pragma: no cover - the fault is raised

    def _raise_fault(self, waited: str) -> None:
        fault = self.member.fault()
        if fault is None:
            return
        reason, rank, text = FaultReason(fault[0]), fault[1], fault[2].decode(errors="replace")
        hint = {
            FaultReason.RAISED: "",
            FaultReason.TIMEOUT: "If the other ranks are only slow, pass a longer timeout.",
            FaultReason.DIED: f"Check the output of rank {rank} for the reason.",
            FaultReason.DISAGREE: "Every rank must make the same calls in the same order.",
        }[reason]
        mine = "" if reason is FaultReason.RAISED and rank == self.rank else waited
        raise self._recorded(ERRORS[reason](f"{text}{mine}.", hint))

    def _recorded(self, failure: RunError) -> RunError:
        """Add the calls of the flight recorder; a traceback shows the last of them."""
        failure.recent = self.recent()
        if sys.version_info >= (3, 11):
            lines = self.recent(most=2)[:_MAX_NOTED]
            failure.add_note("\n  ".join(["The last calls of every rank:", *lines]))
        return failure
