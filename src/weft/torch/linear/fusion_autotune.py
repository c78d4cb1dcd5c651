"""Choice between fused and unfused execution, by measuring the first calls of a shape."""

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
_TRIES = 3  # calls of each variant; the first one allocates memory and does not count


@dataclass
class _FusionTrial:
    """The durations of the first calls of one shape, fused and unfused."""

    seconds: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    fused: bool | None = None
    reason: str = "not decided yet"

    @property
    def next(self) -> bool:
        """Whether the next call is fused: the variant with fewer calls."""
        return len(self.seconds[True]) <= len(self.seconds[False])

    @property
    def over(self) -> bool:
        """Whether both variants had their calls."""
        return all(len(each) == _TRIES for each in self.seconds.values())


class FusionAutotuner:
    """Runs every call of a shape fused or unfused; with "auto" the first few calls decide.

    Both variants compute the same result, so no call is made for the measurement alone. All ranks
    make the same calls and compare the slowest rank's durations, so they decide alike.
    """

    def __init__(self, channel: Channel, fuse: Fuse) -> None:
        if fuse not in (True, False, "auto"):
            raise UsageError(f"fuse: expected True, False or 'auto' (got {fuse!r}).")
        self._channel, self._fuse = channel, fuse
        self._trials: dict[str, _FusionTrial] = {}

    @property
    def reasons(self) -> dict[str, str]:
        """Whether each shape runs fused or unfused, and why."""
        return {call: trial.reason for call, trial in self._trials.items()}

    def do(self, call: str, fused: Callable[[], T], unfused: Callable[[], T]) -> T:
        """Run a call fused or unfused, as chosen for its shape."""
        trial = self._trials.setdefault(call, _FusionTrial())
        if self._fuse != "auto" and trial.fused is None:
            trial.fused = bool(self._fuse)
            trial.reason = f"{'fused' if trial.fused else 'unfused'}: requested"
        if trial.fused is not None:
            return fused() if trial.fused else unfused()
        is_fused = trial.next
        begin = time.perf_counter()
        result = fused() if is_fused else unfused()
        trial.seconds[is_fused].append(time.perf_counter() - begin)
        if trial.over:
            self._decide(trial)
        return result

    def _decide(self, trial: _FusionTrial) -> None:
        mine = [min(trial.seconds[variant][1:]) for variant in (True, False)]
        slowest = torch.tensor(mine, dtype=torch.float64)
        self._channel.all_reduce(slowest, "max", async_op=False)
        fused, unfused = slowest.tolist()
        trial.fused = fused < unfused
        won = "fused: faster" if trial.fused else "unfused: fusing is slower"
        both = f"{format_time(fused)} fused, {format_time(unfused)} unfused"
        trial.reason = f"{won} here ({both}, measured)"
