"""Comparison of measured steps with the plan, and the fallback to torch's default."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from weft.planner.plan import Plan
from weft.units import format_time

WARM = 3  # warm-up steps: buckets, caches and prepared calls
WINDOW = 10  # steps whose median counts
_NEARLY = 0.98  # of the plan's time: the default must be faster than that to be kept


class PlanWarning(UserWarning):
    """A measured step contradicts the plan, or a plan cannot be followed in full."""


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """The median of a window of steps on the slowest rank, by plan or by default."""

    default: bool
    seconds: float


class StepWatch:
    """Monitors step times; if they contradict the plan, the default is measured and compared.

    Steps contradict a plan if they are longer than its range, or than the predicted default. Then
    the default is used for as many steps, and kept if it is faster. Ranks decide alike, because
    ``slowest`` returns the slowest rank's seconds on all of them. A plan that does not ``differ``
    from the default has no fallback.
    """

    def __init__(
        self,
        plan: Plan,
        slowest: Callable[[float], float],
        switch: Callable[[bool], None],
        *,
        differs: bool = True,
        default: str = "torch with Gloo",
        warm: int = WARM,
        window: int = WINDOW,
    ) -> None:
        self._plan, self._slowest, self._switch = plan, slowest, switch
        self._warm, self._window, self.differs = warm, window, differs
        self._default = default
        self._seconds: list[float] = []
        self._skipped = 0
        self.verdicts: list[StepVerdict] = []
        self.default = self.decided = False

    @property
    def planned(self) -> float | None:
        """The last median of steps by plan, None before there is one."""
        return next((v.seconds for v in reversed(self.verdicts) if not v.default), None)

    def note(self, seconds: float) -> None:
        """Record the duration of one step."""
        if self._skipped < self._warm:
            self._skipped += 1
            return
        self._seconds.append(seconds)
        if len(self._seconds) == self._window:
            self._judge()

    def _judge(self) -> None:
        found = StepVerdict(self.default, self._slowest(median(self._seconds)))
        self.verdicts.append(found)
        self._seconds.clear()
        if self.decided:
            return
        if self.default:
            self._compare(found.seconds)
        elif self.contradicts(found.seconds) and not self.differs:
            self.decided = True
            warnings.warn(
                f"{self._window} steps took {format_time(found.seconds)} each, the plan says "
                f"{self._said()}; it equals the default, so there is no fallback",
                PlanWarning,
                stacklevel=4,
            )
        elif self.contradicts(found.seconds):
            self._go(
                default=True,
                text=f"{self._window} steps by plan took {format_time(found.seconds)} each, "
                f"the plan says {self._said()}: going back to the default ({self._default})",
            )

    def contradicts(self, seconds: float) -> bool:
        """Return whether steps of that duration contradict the plan."""
        plan = self._plan
        return seconds > plan.high or (plan.planned < plan.baseline < seconds)

    def _compare(self, seconds: float) -> None:
        """Keep the faster of plan and default, and warn which it is."""
        planned = self.planned
        assert planned is not None
        self.decided = True
        measured = f"the default took {format_time(seconds)}, the plan {format_time(planned)}"
        if seconds < _NEARLY * planned:
            warnings.warn(f"{measured}: staying with the default", PlanWarning, stacklevel=4)
            return
        self._go(
            default=False,
            text=f"{measured}: returning to the plan; its prediction was wrong, its choice is not",
        )

    def _go(self, *, default: bool, text: str) -> None:
        self.default, self._skipped = default, 0
        self._switch(default)
        warnings.warn(text, PlanWarning, stacklevel=5)

    def _said(self) -> str:
        plan = self._plan
        within = f"{format_time(plan.low)} to {format_time(plan.high)}"
        return f"{within}, and {format_time(plan.baseline)} by default"
