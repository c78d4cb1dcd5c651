"""A coverage-guided fuzzer for readers written in Python.

An input that reaches a line of weft which none reached before stays in the corpus, and new inputs
are made from it. A reader may answer or raise a WeftError; anything else is a finding: another
exception, more than its share of memory, or no answer within the deadline.
"""

from __future__ import annotations

import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import weft
from tests.fuzz.changes import changed
from weft.errors import WeftError

_PACKAGE = str(Path(weft.__file__).parent)
_LONGEST = 1 << 14
_DEADLINE = 30.0  # seconds for one input: the machine may be busy


@dataclass(frozen=True)
class Target:
    """A reader: takes any bytes, and may only answer or raise a WeftError."""

    name: str
    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    words: Sequence[bytes] = ()


@dataclass
class Outcome:
    """What fuzzing one target gave."""

    inputs: int = 0
    corpus: list[bytes] = field(default_factory=list)
    found: dict[str, bytes] = field(default_factory=dict)  # by what was raised, and where
    lines: int = 0


class _TookTooLongError(BaseException):
    """Not an Exception, so that no reader takes it for a damaged file."""


class Lines:
    """Lines of weft that have run. A function of which all have is no longer watched."""

    def __init__(self) -> None:
        self._unseen: dict[CodeType, set[int]] = {}
        self.count = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()  # a debugger's, or coverage's
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        if code not in self._unseen:
            mine = code.co_filename.startswith(_PACKAGE)
            self._unseen[code] = {line for *_, line in code.co_lines() if line} if mine else set()
        return self._ran if self._unseen[code] else None

    def _ran(self, frame: FrameType, event: str, _arg: Any) -> Any:
        unseen = self._unseen[frame.f_code]
        if event == "line" and frame.f_lineno in unseen:
            unseen.discard(frame.f_lineno)
            self.count += 1
        return self._ran


def fuzz(target: Target, *, seconds: float, seed: int, most: int = 1 << 60) -> Outcome:
    """Feed a target until the time or the number of inputs is over."""
    outcome, lines, dice = Outcome(), Lines(), random.Random(f"{seed} {target.name}")
    fresh = iter(target.seeds)
    deadline = time.monotonic() + seconds
    with _no_hang():
        # One at least, however long getting ready took.
        while outcome.inputs < most and (not outcome.inputs or time.monotonic() < deadline):
            given = next(fresh, None)
            if given is None:
                given = changed(dice, outcome.corpus, target.words)[:_LONGEST]
            before = lines.count
            with lines.watching():
                finding = trial(target, given)
            outcome.inputs += 1
            if finding:
                outcome.found.setdefault(finding, given)
            if lines.count > before or outcome.inputs <= len(target.seeds):
                outcome.corpus.append(given)
    outcome.lines = lines.count
    return outcome


def trial(target: Target, given: bytes) -> str:
    """Feed one input; say what went wrong and where, or nothing."""
    signal.setitimer(signal.ITIMER_REAL, _DEADLINE)
    try:
        target.read(given)
    except WeftError:
        return ""
    except _TookTooLongError:
        return "no answer in time"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _PACKAGE in f.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
        return f"{type(error).__name__} at {place}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


@contextmanager
def _no_hang() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise _TookTooLongError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
