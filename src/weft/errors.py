"""Every error weft raises: one tree, each branch also the builtin a caller expects."""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING


class WeftError(Exception):
    """Something the caller can act on: ``str(error)`` is what is wrong, ``hint`` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(WeftError, ValueError):
    """An argument is wrong: a rank, a count, an algorithm that does not apply."""


class SizeError(UsageError):
    """A size cannot be read, or cannot be divided among the ranks."""


class UnknownNameError(WeftError, LookupError):
    """No collective, algorithm, platform or workload has this name."""


class BagError(WeftError, IndexError):
    """An embedding bag asks for a row that its table does not have, or its borders go back."""


class PlatformError(WeftError, ValueError):
    """A platform description is wrong."""


class FormatError(WeftError, ValueError):
    """A file is truncated, of a newer version, or not what it should be."""


class CodecError(WeftError, ValueError):
    """What should be decoded was not encoded so: cut, changed on its way, or by another codec."""

    verdict: int | None = None  # what a frame was found to be, as weft.compress numbers it


class NotQuietError(WeftError, RuntimeError):
    """Others used the machine while it was to be measured."""


class NoPlanError(WeftError, ValueError):
    """No plan fits."""


class ReplayError(WeftError, RuntimeError):
    """The replay of a trace is too far from what was measured."""


class PlanError(WeftError, ValueError):
    """A plan is for something else."""


class WorkloadError(WeftError, ValueError):
    """The ops of a step do not fit together."""


class CaptureError(WeftError, RuntimeError):
    """A step of torch code cannot be captured."""


class ScheduleError(WeftError, ValueError):
    """A schedule does not mean anything that can be carried out."""


class DeadlockError(ScheduleError):
    """Some commands can never start."""


class FlagError(ScheduleError):
    """A Wait does not have its Signals."""


class RaceError(ScheduleError):
    """Two commands touch the same bytes in no order."""


class BoundsError(ScheduleError):
    """A slice reaches outside its buffer."""


class TooLargeError(ScheduleError):
    """A schedule is too large to be expanded."""


class RunError(WeftError, RuntimeError):
    """A run did not end well. ``recent`` are the last calls of every rank, where known."""

    recent: tuple[str, ...] = ()


class RunTimeoutError(RunError, TimeoutError):
    """A command was not done within the timeout."""

    # Its memory is laid out as an OSError's; tblib, which Dask brings, asks for __new__ by name.
    if not TYPE_CHECKING:  # which would take what it makes for anything
        __new__ = TimeoutError.__new__


class NotDoneError(RunTimeoutError):
    """Whoever waited had less patience than the work, which goes on."""


class RankDiedError(RunError):
    """The process of a rank ended before its work did."""


class DisagreeError(RunError):
    """The ranks do not do the same thing: shape, dtype or order."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known names closest to a wrong one, or list all if none is close.

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
