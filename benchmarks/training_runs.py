"""Training steps of small models, measured so that a repetition gives the same result.

Every repetition starts fresh, pinned processes that keep their memory. Models and backends take
turns; between turns the caller may time other things. A slice of steps is discarded if ranks did
not have their cores to themselves. The speed of memory is only recorded: it varies by a quarter on
an idle machine, so whatever is compared with steps must be timed in turn with them.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from statistics import fmean, median

import numpy as np

from weft.calibration.noise import cpu_ticks
from weft.calibration.steady_memory import SETTINGS
from weft.local_runs.rank_team import Team, rank_starts
from weft.local_runs.synthetic_models import RANKS, SyntheticModel

BACKENDS = ("gloo", "weft")
_SLICES = 4  # of each model and backend in a repetition, in turn
_SECONDS = 0.3  # of steps in a slice
_OWN, _FOREIGN = 0.9, 0.02  # least own and largest foreign CPU share of a valid slice

Key = tuple[str, str]  # a model's name and a backend


@dataclass
class TimedSlice:
    """Seconds of some steps, of a copy before them, and the CPU shares of ranks and of others."""

    steps: list[float]
    probe: float
    own: float
    foreign: float


@dataclass
class Measured:
    """All slices of one model and backend, by repetition."""

    slices: list[list[TimedSlice]] = field(default_factory=list)

    def repetitions(self) -> list[float]:
        """Return the median of each repetition: of undisturbed slices, if it has any."""
        return [
            median(_steps(filter(self._is_clean, each)) or _steps(each)) for each in self.slices
        ]

    @property
    def seconds(self) -> float:
        """The median of the repetitions."""
        return median(self.repetitions())

    @property
    def floor(self) -> float:
        """The median deviation of repetitions from their median: no prediction can do better."""
        middle = self.seconds
        return median(abs(each / middle - 1) for each in self.repetitions())

    @property
    def discarded(self) -> float:
        """The share of slices in which ranks did not have their cores to themselves."""
        return 1 - fmean(map(self._is_clean, self._all()))

    @property
    def moved(self) -> float:
        """The range of the speed of memory that nine of ten copies lie within."""
        least, most = np.quantile([slice_.probe for slice_ in self._all()], (0.05, 0.95))
        return float(most / least - 1)

    def _all(self) -> list[TimedSlice]:
        return [slice_ for each in self.slices for slice_ in each]

    def _is_clean(self, slice_: TimedSlice) -> bool:
        """Return whether ranks had their cores, relative to the best slice: Gloo sleeps."""
        own = max(v.own for v in self._all())
        return slice_.own >= _OWN * own and slice_.foreign <= _FOREIGN


def _steps(slices: Iterable[TimedSlice]) -> list[float]:
    return [seconds for slice_ in slices for seconds in slice_.steps]


def gathered(found: Iterable[Mapping[Key, list[TimedSlice]]]) -> dict[Key, Measured]:
    """Merge repetitions by model and backend."""
    by_key: dict[Key, Measured] = defaultdict(Measured)
    for each in found:
        for key, slices in each.items():
            by_key[key].slices.append(slices)
    return dict(by_key)


def repetition(
    models: Mapping[str, SyntheticModel], between: Callable[[], None] = lambda: None
) -> dict[Key, list[TimedSlice]]:
    """Train every model by every backend for a while, in turn, in fresh processes.

    ``between`` is called before, between and after these turns.
    """
    found: dict[Key, list[TimedSlice]] = defaultdict(list)
    with ExitStack() as stack:
        teams = {name: stack.enter_context(closing(_team(name))) for name in BACKENDS}
        for name, model in models.items():
            for team in teams.values():
                team.ask("open", name, case={"model": asdict(model), "seconds": _SECONDS})
        for _ in range(_SLICES):
            between()
            for name in models:
                for backend, team in teams.items():
                    found[name, backend].append(_timed_slice(team, name))
        between()
    return found


def _team(backend: str) -> Team:
    words = [sys.executable, "-m", "benchmarks.torch_step_rank", backend]
    return Team(backend, RANKS, rank_starts(words, RANKS, SETTINGS))


def busy_seconds() -> float:
    """Return the busy seconds of all cores together since boot."""
    idle, total = cpu_ticks()
    return (total - idle) / os.sysconf("SC_CLK_TCK")


def _timed_slice(team: Team, name: str) -> TimedSlice:
    busy, begin = busy_seconds(), time.perf_counter()
    answers = [reply["answer"] for reply in team.ask("answer", name)]
    busy, passed = busy_seconds() - busy, time.perf_counter() - begin
    # Ranks wait for each other in every step, so a step is what the slower one says.
    steps = [max(each) for each in zip(*(mine["steps"] for mine in answers), strict=True)]
    timed = max(each["wall"] for each in answers)
    used = sum(each["cpu"] for each in answers)
    # What ranks do around the timed steps is theirs too: it is as busy as the steps are.
    foreign = max(0.0, busy / passed - used / timed) / RANKS
    own = min(each["cpu"] / each["wall"] for each in answers)
    return TimedSlice(steps, max(each["probe"] for each in answers), own, foreign)
