"""The errors that weft raises: one tree; each class also derives from a builtin exception."""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING


class WeftError(Exception):
    """Base class. ``str(error)`` states the problem, ``hint`` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(WeftError, ValueError):
    """An argument is invalid: a rank, a count, an algorithm that does not apply."""


class SizeError(UsageError):
    """A size cannot be parsed, or cannot be divided among the ranks."""


class UnknownNameError(WeftError, LookupError):
    """No collective, algorithm, platform or workload has this name."""


class BagError(WeftError, IndexError):
    """An index of an embedding bag is out of range, or its offsets decrease."""


class PlatformError(WeftError, ValueError):
    """A platform description is invalid."""


class FormatError(WeftError, ValueError):
    """A file is truncated, of a newer version, or malformed."""


class CodecError(WeftError, ValueError):
    """An encoded frame is truncated, corrupted, or from another codec."""

    verdict: int | None = None  # a weft.compress.frame.FrameStatus


class NotQuietError(WeftError, RuntimeError):
    """Other processes used the machine during a measurement."""


class NoPlanError(WeftError, ValueError):
    """No plan satisfies the limits."""


class ReplayError(WeftError, RuntimeError):
    """The replay of a trace deviates too much from the measurement."""


class PlanError(WeftError, ValueError):
    """A plan does not match the job it is applied to."""


class WorkloadError(WeftError, ValueError):
    """The ops of a step are inconsistent."""


class CaptureError(WeftError, RuntimeError):
    """A step of torch code cannot be captured."""


class ScheduleError(WeftError, ValueError):
    """A schedule is invalid."""


class DeadlockError(ScheduleError):
    """Some commands of a schedule can never start."""


class FlagError(ScheduleError):
    """A Wait has too few Signals."""


class RaceError(ScheduleError):
    """Two conflicting accesses to the same bytes are not ordered."""


class BoundsError(ScheduleError):
    """A slice is outside its buffer."""


class TooLargeError(ScheduleError):
    """A schedule is too large to be expanded."""


class RunError(WeftError, RuntimeError):
    """A run failed. ``recent`` lists the last calls of every rank, if known."""

    recent: tuple[str, ...] = ()


class RunTimeoutError(RunError, TimeoutError):
    """A command did not finish within the timeout."""

    # TimeoutError has the memory layout of OSError; tblib (used by Dask) looks up __new__ by name.
    if not TYPE_CHECKING:  # mypy would infer Any for instances
        __new__ = TimeoutError.__new__


class SharedMemoryError(RunError):
    """There is not enough shared memory."""


class StaleWeightsError(RunError):
    """A receiver's tensors are not those that a weight update starts from."""


class NotDoneError(RunTimeoutError):
    """A wait timed out; the work continues."""


class RankDiedError(RunError):
    """The process of a rank exited before its work was done."""


class DisagreeError(RunError):
    """The ranks issued different collectives: kind, shape, dtype or order."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known names closest to a wrong one, or all if none is close.

    >>> nearest("rign", ["ring", "tree"])
    "Did you mean 'ring'?"
    >>> nearest("xyz", ["ring", "tree"])
    'Known: ring, tree.'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=2)
    if close:
        return f"Did you mean {' or '.join(map(repr, close))}?"
    return f"Known: {', '.join(names)}." if names else ""
