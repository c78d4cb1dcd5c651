"""Small models trained for real, by rules that let the same step be measured again.

Every repetition has fresh processes, pinned, that keep their memory; models and backends take
turns in it, and in between somebody may look at the machine. A visit does not count if ranks did
not have their cores to themselves. How fast memory was is only said: it moves by a quarter with
nobody else there, so what is compared with steps has to be timed in turn with them.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from weft.calibration.noise import cpu_ticks
from weft.calibration.steady_memory import SETTINGS
from weft.local_runs.rank_team import Team, rank_starts
from weft.local_runs.synthetic_models import RANKS, SyntheticModel, case_of

BACKENDS = ("gloo", "weft")
_VISITS = 4  # of each model and backend in a repetition, in turn
_SECONDS = 0.3  # of steps in a visit
_OWN, _FOREIGN = 0.9, 0.02  # what a visit may show to count

Key = tuple[str, str]  # a model's name and a backend


@dataclass
class Visit:
    """Seconds of some steps, those of a copy before, and whose the cores were meanwhile."""

    steps: list[float]
    probe: float
    own: float
    foreign: float


@dataclass
class Measured:
    """All visits of one model and backend, by repetition."""

    visits: list[list[Visit]] = field(default_factory=list)

    def repetitions(self) -> list[float]:
        """Return the median of each repetition: of undisturbed visits, if it has any."""
        return [
            median(_steps(filter(self._is_clean, each)) or _steps(each)) for each in self.visits
        ]

    @property
    def seconds(self) -> float:
        """The median of the repetitions."""
        return median(self.repetitions())

    @property
    def floor(self) -> float:
        """How far a repetition is from the median of all, in the middle: nobody can do better."""
        middle = self.seconds
        return median(abs(each / middle - 1) for each in self.repetitions())

    @property
    def discarded(self) -> float:
        """The share of visits in which ranks did not have their cores."""
        return 1 - fmean(map(self._is_clean, self._all()))

    @property
    def moved(self) -> float:
        """How far the speed of memory moved: nine of ten copies lie within."""
        least, most = np.quantile([visit.probe for visit in self._all()], (0.05, 0.95))
        return float(most / least - 1)

    def _all(self) -> list[Visit]:
        return [visit for each in self.visits for visit in each]

    def _is_clean(self, visit: Visit) -> bool:
        """Return whether ranks had their cores; as Gloo sleeps while it waits, the best counts."""
        own = max(v.own for v in self._all())
        return visit.own >= _OWN * own and visit.foreign <= _FOREIGN


def _steps(visits: Iterable[Visit]) -> list[float]:
    return [seconds for visit in visits for seconds in visit.steps]


def gathered(found: Iterable[Mapping[Key, list[Visit]]]) -> dict[Key, Measured]:
    """Put repetitions together."""
    by_key: dict[Key, Measured] = defaultdict(Measured)
    for each in found:
        for key, visits in each.items():
            by_key[key].visits.append(visits)
    return dict(by_key)


def repetition(
    models: Mapping[str, SyntheticModel], look: Callable[[], None] = lambda: None
) -> dict[Key, list[Visit]]:
    """Train every model by every backend for a while, in turn, in fresh processes.

    Before, between and after these turns ``look`` may see how the machine is.
    """
    found: dict[Key, list[Visit]] = defaultdict(list)
    with ExitStack() as stack:
        teams = {name: stack.enter_context(closing(_team(name))) for name in BACKENDS}
        for name, model in models.items():
            for team in teams.values():
                team.ask("open", name, case={"model": case_of(model), "seconds": _SECONDS})
        for _ in range(_VISITS):
            look()
            for name in models:
                for backend, team in teams.items():
                    found[name, backend].append(_visit(team, name))
        look()
    return found


def _team(backend: str) -> Team:
    words = [sys.executable, "-m", "benchmarks.torch_step_rank", backend]
    return Team(backend, RANKS, rank_starts(words, RANKS, SETTINGS))


def busy_seconds() -> float:
    """Return the busy seconds of all cores together since boot."""
    idle, total = cpu_ticks()
    return (total - idle) / os.sysconf("SC_CLK_TCK")


def _visit(team: Team, name: str) -> Visit:
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
    return Visit(steps, max(each["probe"] for each in answers), own, foreign)
