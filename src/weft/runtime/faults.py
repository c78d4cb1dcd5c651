"""Why ranks stop: what one of them met, told to all of them and raised as an error on each."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from weft._core import AbortCause, FaultReason, Member, Verdict
from weft.compress.frame import REASONS
from weft.errors import DisagreeError, RankDiedError, RunError, RunTimeoutError, UsageError

_MOST_NOTED = 32  # lines of the flight recorder in a traceback
AbortTuple = tuple[int, int, int, int, int]  # the fields of a Halt, as the native core gives them


class Abort(NamedTuple):
    """Where a rank gave up, and how far what it waited for had come."""

    cause: AbortCause
    rank: int
    row: int
    have: int
    want: int


_ERRORS: dict[FaultReason, type[RunError]] = {
    FaultReason.RAISED: RunError,
    FaultReason.TIMEOUT: RunTimeoutError,
    FaultReason.DIED: RankDiedError,
    FaultReason.DISAGREE: DisagreeError,
}


def require_timeout(seconds: float) -> None:
    """Raise for seconds in which nobody can come."""
    if not seconds > 0:  # nor is NaN
        raise UsageError(f"the timeout must be positive, not {seconds}.")


class CallScope:
    """The turn of the thread that makes the collective calls of a rank; ``with`` takes it.

    The same thread may take it again. A second thread is refused and the world ends with a
    DisagreeError: the ranks have no common order of calls that two threads make at once.
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
    """What a rank says when it stops, and what it hears of the others.

    After a fault (a rank died, raised or was waited for too long) every call on every rank
    raises it.
    """

    def __init__(self, member: Member, rank: int, timeout: float) -> None:
        self.member = member
        self.rank = rank
        self.num_ranks = member.num_ranks
        self.timeout = timeout
        self._closed = ""  # why, once it is

    def recent(self, most: int = 8) -> tuple[str, ...]:
        """Give the last calls of every rank, as the flight recorder has them: 64 are kept."""
        lines = []
        for rank in range(self.num_ranks):
            latest, ended = self.member.last_call(rank)
            for number in range(max(latest - most, 0) + 1, latest + 1):
                if text := self.member.call(rank, number):
                    state = "done" if number <= ended else "under way"
                    lines.append(f"rank {rank} call {number}: {text}, {state}")
        return tuple(lines)

    def fail(self, reason: FaultReason, rank: int, text: str) -> None:
        """Break the world: every rank that waits stops, and says why."""
        self.member.fail(reason, rank, text.encode())

    def fail_with(self, error: BaseException, doing: str = "") -> None:
        """Break the world because this rank raised ``error``."""
        what = "".join(traceback.format_exception_only(error)).strip().removesuffix(".")
        self.fail(FaultReason.RAISED, self.rank, f"rank {self.rank} raised {what}{doing}")

    def require_healthy(self) -> None:
        """Raise if this world is closed or broken."""
        if self._closed:
            raise RunError(self._closed)
        self._raise_fault("")

    def exclusive(self, call: str) -> CallScope:
        """Take the turn to make collective calls for a block: ``with self.exclusive("group"):``."""
        return CallScope(self, call)

    def raise_second_thread(self, call: str) -> NoReturn:
        """End the world: this thread makes a collective call while another one is in a call.

        Not where it is closed here already. In a forked child nobody gives the turn back that a
        thread of its parent had, and the parent's world is not the child's to end.
        """
        self.require_healthy()
        self.raise_abort((AbortCause.THREADS, self.rank, -1, 0, 0), lambda _: call)

    def raise_abort(self, abort: AbortTuple, where: Callable[[int], str]) -> NoReturn:
        """Turn what made this rank give up into an error, here and on every other rank."""
        found = Abort(AbortCause(abort[0]), *abort[1:])
        place = where(found.row)
        waited = f" while rank {self.rank} waited at {place}"
        match found.cause:
            case AbortCause.DIED:
                how = f"died (pid {self.member.pid(found.rank)}) {self.member.doing(found.rank)}"
                self.fail(FaultReason.DIED, found.rank, f"rank {found.rank} {how}")
            case AbortCause.LEFT:
                how = f"left the world {self.member.doing(found.rank)}"
                self.fail(FaultReason.DIED, found.rank, f"rank {found.rank} {how}")
            case AbortCause.TIMEOUT:
                self.fail(FaultReason.TIMEOUT, found.rank, self._too_long(found, place))
                waited = ""
            case AbortCause.SLOT | AbortCause.CODEC | AbortCause.MEMORY:
                self.fail(FaultReason.RAISED, self.rank, self._not_carried_out(found, place))
                waited = ""
            case AbortCause.SIZE:
                wrong = f"{found.have} bytes from rank {found.rank} where it wants {found.want}"
                text = f"rank {self.rank} gets {wrong} {self.member.doing(self.rank)}"
                self.fail(FaultReason.DISAGREE, self.rank, text)
                waited = ""
            case AbortCause.DISAGREE:
                self.fail(FaultReason.DISAGREE, found.rank, self.member.disagreement(found.rank))
                waited = ""
            case AbortCause.THREADS:
                doing = self.member.doing(self.rank)
                text = f"rank {self.rank} calls {place} while another of its threads is {doing}"
                own = "threads that communicate at once need a group each (World.group)"
                self.fail(FaultReason.DISAGREE, self.rank, f"{text}; {own}")
                waited = ""
            case AbortCause.STOPPED if self._closed:
                raise RunError(f"{place} was cut off: {self._closed}")
            case AbortCause.FAULT | AbortCause.STOPPED:
                pass
        self._raise_fault(waited)
        raise RunError(f"an engine stopped{waited}.")  # pragma: no cover - it says why above

    def _not_carried_out(self, found: Abort, place: str) -> str:
        match found.cause:
            case AbortCause.SLOT:
                wrong = f"a slot of {found.have} bytes where {found.want} are wanted"
                return f"rank {self.rank} found {wrong} at {place}"
            case AbortCause.CODEC:
                wrong = f"cannot decode the chunk at byte {found.want}"
                return f"rank {self.rank} {wrong}: {REASONS[Verdict(found.have)]}, at {place}"
            case _:
                why = f"the memory of rank {found.rank} ({os.strerror(found.have)})"
                return f"rank {self.rank} cannot reach {why} at {place}"

    def _too_long(self, abort: Abort, place: str) -> str:
        come = f" ({abort.have} of {abort.want} came)" if abort.want else ""
        text = f"rank {self.rank} timed out after {self.timeout:g} s at {place}{come}"
        awaited = abort.rank if abort.row < 0 else -1
        return f"{text}{self.member.missing(awaited)}"

    def _raise_fault(self, waited: str) -> None:
        fault = self.member.fault()
        if fault is None:
            return
        reason, rank, text = FaultReason(fault[0]), fault[1], fault[2].decode(errors="replace")
        hint = {
            FaultReason.RAISED: "",
            FaultReason.TIMEOUT: "If the others are only slow, give a longer timeout.",
            FaultReason.DIED: f"Look into the output of rank {rank} for the reason.",
            FaultReason.DISAGREE: "Every rank must make the same calls in the same order.",
        }[reason]
        mine = "" if reason is FaultReason.RAISED and rank == self.rank else waited
        raise self._recorded(_ERRORS[reason](f"{text}{mine}.", hint))

    def _recorded(self, failure: RunError) -> RunError:
        """Add what the flight recorder has; a traceback shows the end of it."""
        failure.recent = self.recent()
        if sys.version_info >= (3, 11):
            lines = self.recent(most=2)[:_MOST_NOTED]
            failure.add_note("\n  ".join(["The last calls of every rank:", *lines]))
        return failure
