"""Fused or one after the other: which of two ways is faster here, found in the first calls."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from weft.errors import UsageError
from weft.torch.backend.channel import Channel
from weft.units import format_time

T = TypeVar("T")
Fuse = bool | str
_TRIES = 3  # calls of each way; the first of them prepares memory and does not count


@dataclass
class _FusionTrial:
    """What the first calls of one shape took, in each way."""

    seconds: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    fused: bool | None = None
    reason: str = "not decided yet"

    @property
    def next(self) -> bool:
        """The way that has had fewer calls."""
        return len(self.seconds[True]) <= len(self.seconds[False])

    @property
    def over(self) -> bool:
        """Whether both ways had their calls."""
        return all(len(each) == _TRIES for each in self.seconds.values())


class FusionAutotuner:
    """Lets every call of a shape be fused or not; with "auto" the first few calls decide.

    Both ways give the same result, so nothing is done for the measurement alone. All ranks
    take part in the same calls and count with the slowest of them, so they decide alike.
    """

    def __init__(self, channel: Channel, fuse: Fuse) -> None:
        if fuse not in (True, False, "auto"):
            raise UsageError(f"fuse is {fuse!r}: expected True, False or 'auto'.")
        self._channel, self._fuse = channel, fuse
        self._trials: dict[str, _FusionTrial] = {}

    @property
    def reasons(self) -> dict[str, str]:
        """What is done for each shape that came, and why."""
        return {call: trial.reason for call, trial in self._trials.items()}

    def do(self, call: str, fused: Callable[[], T], apart: Callable[[], T]) -> T:
        """Carry a call out in the way that is chosen for its shape."""
        trial = self._trials.setdefault(call, _FusionTrial())
        if self._fuse != "auto" and trial.fused is None:
            trial.fused = bool(self._fuse)
            trial.reason = f"{'fused' if trial.fused else 'one after the other'}: asked for"
        if trial.fused is not None:
            return fused() if trial.fused else apart()
        way = trial.next
        begin = time.perf_counter()
        result = fused() if way else apart()
        trial.seconds[way].append(time.perf_counter() - begin)
        if trial.over:
            self._decide(trial)
        return result

    def _decide(self, trial: _FusionTrial) -> None:
        mine = [min(trial.seconds[way][1:]) for way in (True, False)]
        slowest = torch.tensor(mine, dtype=torch.float64)
        self._channel.all_reduce(slowest, "max", async_op=False)
        together, apart = slowest.tolist()
        trial.fused = together < apart
        won = "fused: fusing gains" if trial.fused else "one after the other: fusing loses"
        both = f"{format_time(together)} fused, {format_time(apart)} one after the other"
        trial.reason = f"{won} here ({both}, measured)"
