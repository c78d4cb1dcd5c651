"""Why ranks stop: what one of them met, told to all of them and raised as an error on each."""

import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, NoReturn

from weft._core import Member
from weft.compress.frame import REASONS, FrameStatus
from weft.errors import DisagreeError, RankDiedError, RunError, RunTimeoutError, UsageError

_MOST_NOTED = 32  # lines of the flight recorder in a traceback
Halted = tuple[int, int, int, int, int]  # the fields of a Halt, as the native core gives them


class Reason(IntEnum):
    """Why a world broke, as the native core numbers it."""

    RAISED = 1
    TIMEOUT = 2
    DIED = 3
    DISAGREE = 4


class Cause(IntEnum):
    """Why a rank gave up waiting, as the native core numbers it."""

    FAULT = 0
    STOPPED = 1
    TIMEOUT = 2
    DIED = 3
    LEFT = 4
    SLOT = 5
    MEMORY = 6
    SIZE = 7
    DISAGREE = 8
    CODEC = 9
    THREADS = 10


class Halt(NamedTuple):
    """Where a rank gave up, and how far what it waited for had come."""

    cause: Cause
    rank: int
    row: int
    have: int
    want: int


_ERRORS: dict[Reason, type[RunError]] = {
    Reason.RAISED: RunError,
    Reason.TIMEOUT: RunTimeoutError,
    Reason.DIED: RankDiedError,
    Reason.DISAGREE: DisagreeError,
}


def require_timeout(seconds: float) -> None:
    """Raise for seconds in which nobody can come."""
    if not seconds > 0:  # nor is NaN
        raise UsageError(f"the timeout must be positive, not {seconds}.")


class Alone:
    """The turn of the thread that makes the collective calls of a rank; ``with`` takes it.

    The same thread may take it again. A second thread is refused and the world ends with a
    DisagreeError: the ranks have no common order of calls that two threads make at once.
    """

    __slots__ = ("_call", "_faults")

    def __init__(self, faults: "Faults", call: str) -> None:
        self._faults = faults
        self._call = call

    def __enter__(self) -> None:
        if not self._faults.member.enter_turn():
            self._faults.raise_second_thread(self._call)

    def __exit__(self, *_: object) -> None:
        self._faults.member.leave_turn()


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

    def fail(self, reason: Reason, rank: int, text: str) -> None:
        """Break the world: every rank that waits stops, and says why."""
        self.member.fail(reason, rank, text.encode())

    def fail_with(self, error: BaseException, doing: str = "") -> None:
        """Break the world because this rank raised ``error``."""
        what = "".join(traceback.format_exception_only(error)).strip().removesuffix(".")
        self.fail(Reason.RAISED, self.rank, f"rank {self.rank} raised {what}{doing}")

    def require_sound(self) -> None:
        """Raise if this world is closed or broken."""
        if self._closed:
            raise RunError(self._closed)
        self._raise_fault("")

    def alone(self, call: str) -> Alone:
        """Take the turn to make collective calls for a block: ``with self.alone("group"):``."""
        return Alone(self, call)

    def raise_second_thread(self, call: str) -> NoReturn:
        """End the world: this thread makes a collective call while another one is in a call.

        Not where it is closed here already. In a forked child nobody gives the turn back that a
        thread of its parent had, and the parent's world is not the child's to end.
        """
        self.require_sound()
        self.raise_halt((Cause.THREADS, self.rank, -1, 0, 0), lambda _: call)

    def raise_halt(self, halt: Halted, where: Callable[[int], str]) -> NoReturn:
        """Turn what made this rank give up into an error, here and on every other rank."""
        found = Halt(Cause(halt[0]), *halt[1:])
        place = where(found.row)
        waited = f" while rank {self.rank} waited at {place}"
        match found.cause:
            case Cause.DIED:
                how = f"died (pid {self.member.pid(found.rank)}) {self.member.doing(found.rank)}"
                self.fail(Reason.DIED, found.rank, f"rank {found.rank} {how}")
            case Cause.LEFT:
                how = f"left the world {self.member.doing(found.rank)}"
                self.fail(Reason.DIED, found.rank, f"rank {found.rank} {how}")
            case Cause.TIMEOUT:
                self.fail(Reason.TIMEOUT, found.rank, self._too_long(found, place))
                waited = ""
            case Cause.SLOT | Cause.CODEC | Cause.MEMORY:
                self.fail(Reason.RAISED, self.rank, self._not_carried_out(found, place))
                waited = ""
            case Cause.SIZE:
                wrong = f"{found.have} bytes from rank {found.rank} where it wants {found.want}"
                text = f"rank {self.rank} gets {wrong} {self.member.doing(self.rank)}"
                self.fail(Reason.DISAGREE, self.rank, text)
                waited = ""
            case Cause.DISAGREE:
                self.fail(Reason.DISAGREE, found.rank, self.member.disagreement(found.rank))
                waited = ""
            case Cause.THREADS:
                doing = self.member.doing(self.rank)
                text = f"rank {self.rank} calls {place} while another of its threads is {doing}"
                own = "threads that communicate at once need a group each (World.group)"
                self.fail(Reason.DISAGREE, self.rank, f"{text}; {own}")
                waited = ""
            case Cause.STOPPED if self._closed:
                raise RunError(f"{place} was cut off: {self._closed}")
            case Cause.FAULT | Cause.STOPPED:
                pass
        self._raise_fault(waited)
        raise RunError(f"an engine stopped{waited}.")  # pragma: no cover - it says why above

    def _not_carried_out(self, found: Halt, place: str) -> str:
        match found.cause:
            case Cause.SLOT:
                wrong = f"a slot of {found.have} bytes where {found.want} are wanted"
                return f"rank {self.rank} found {wrong} at {place}"
            case Cause.CODEC:
                wrong = f"cannot decode the chunk at byte {found.want}"
                return f"rank {self.rank} {wrong}: {REASONS[FrameStatus(found.have)]}, at {place}"
            case _:
                why = f"the memory of rank {found.rank} ({os.strerror(found.have)})"
                return f"rank {self.rank} cannot reach {why} at {place}"

    def _too_long(self, halt: Halt, place: str) -> str:
        come = f" ({halt.have} of {halt.want} came)" if halt.want else ""
        text = f"rank {self.rank} timed out after {self.timeout:g} s at {place}{come}"
        awaited = halt.rank if halt.row < 0 else -1
        return f"{text}{self.member.missing(awaited)}"

    def _raise_fault(self, waited: str) -> None:
        fault = self.member.fault()
        if fault is None:
            return
        reason, rank, text = Reason(fault[0]), fault[1], fault[2].decode(errors="replace")
        hint = {
            Reason.RAISED: "",
            Reason.TIMEOUT: "If the others are only slow, give a longer timeout.",
            Reason.DIED: f"Look into the output of rank {rank} for the reason.",
            Reason.DISAGREE: "Every rank must make the same calls in the same order.",
        }[reason]
        mine = "" if reason is Reason.RAISED and rank == self.rank else waited
        raise self._recorded(_ERRORS[reason](f"{text}{mine}.", hint))

    def _recorded(self, failure: RunError) -> RunError:
        """Add what the flight recorder has; a traceback shows the end of it."""
        failure.recent = self.recent()
        if sys.version_info >= (3, 11):
            lines = self.recent(most=2)[:_MOST_NOTED]
            failure.add_note("\n  ".join(["The last calls of every rank:", *lines]))
        return failure
