"""Small models trained for real, by rules that let the same step be measured again.

Every repetition has fresh processes, pinned, that keep their memory; models and backends take
turns in it. A repetition does not count if its ranks did not have their cores to themselves.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from statistics import median

from weft.bench.drawn_models import RANKS, Drawn, case_of
from weft.bench.team import Team
from weft.bench.teams import rank_starts
from weft.runtime.calm import busy_seconds
from weft.torch.steady import SETTINGS

BACKENDS = ("gloo", "weft")
REPETITIONS = 5
_VISITS = 3  # of each model and backend in a repetition, in turn
_SECONDS = 0.5  # of steps in a visit
_OWN, _FOREIGN, _PROBE = 0.9, 0.02, 1.1  # what a visit may show to count

Key = tuple[str, str]  # a model's name and a backend


@dataclass
class Visit:
    """Some steps of one model: their median, and whether the machine was its own meanwhile."""

    seconds: float
    probe: float
    own: float
    foreign: float


@dataclass
class Measured:
    """All visits of one model and backend, by repetition."""

    visits: list[list[Visit]] = field(default_factory=list)

    def clean(self) -> list[float]:
        """Give the medians of repetitions, of visits that nothing disturbed, if there are any."""
        clean = self._is_clean
        kept = [[v.seconds for v in each if clean(v)] for each in self.visits]
        if not any(kept):
            kept = [[v.seconds for v in each] for each in self.visits]
        return [median(each) for each in kept if each]

    @property
    def seconds(self) -> float:
        """The median of the repetitions."""
        return median(self.clean())

    @property
    def floor(self) -> float:
        """How far a repetition is from the median of all, in the middle: nobody can do better."""
        middle = self.seconds
        return median(abs(each / middle - 1) for each in self.clean())

    @property
    def discarded(self) -> float:
        """The share of visits that did not count."""
        every = [self._is_clean(visit) for visit in self._all()]
        return 1 - sum(every) / len(every)

    def _all(self) -> list[Visit]:
        return [visit for each in self.visits for visit in each]

    def _is_clean(self, visit: Visit) -> bool:
        """Tell whether ranks had their cores; as Gloo sleeps while it waits, the best counts."""
        own, probe = max(v.own for v in self._all()), min(v.probe for v in self._all())
        mine = visit.own >= _OWN * own and visit.probe <= _PROBE * probe
        return mine and visit.foreign <= _FOREIGN


def train(models: Mapping[str, Drawn], repetitions: int = REPETITIONS) -> dict[Key, Measured]:
    """Train every model by every backend, in fresh processes for each repetition."""
    found: dict[Key, Measured] = defaultdict(Measured)
    for _ in range(repetitions):
        for key, visits in _repetition(models).items():
            found[key].visits.append(visits)
    return dict(found)


def _repetition(models: Mapping[str, Drawn]) -> dict[Key, list[Visit]]:
    found: dict[Key, list[Visit]] = defaultdict(list)
    with ExitStack() as stack:
        teams = {name: stack.enter_context(closing(_team(name))) for name in BACKENDS}
        for name, model in models.items():
            for team in teams.values():
                team.ask("open", name, case={"model": case_of(model), "seconds": _SECONDS})
        for _ in range(_VISITS):
            for name in models:
                for backend, team in teams.items():
                    found[name, backend].append(_visit(team, name))
    return found


def _team(backend: str) -> Team:
    words = [sys.executable, "-m", "weft.bench.torch_step_rank", backend]
    return Team(backend, RANKS, rank_starts(words, RANKS, SETTINGS))


def _visit(team: Team, name: str) -> Visit:
    busy, begin = busy_seconds(), time.perf_counter()
    answers = [reply["answer"] for reply in team.ask("answer", name)]
    busy, passed = busy_seconds() - busy, time.perf_counter() - begin
    # Ranks wait for each other in every step, so a step is what the slower one says.
    steps = [max(pair) for pair in zip(*(each["steps"] for each in answers), strict=True)]
    timed = max(each["wall"] for each in answers)
    used = sum(each["cpu"] for each in answers)
    # What ranks do around the timed steps is theirs too: it is as busy as the steps are.
    foreign = max(0.0, busy / passed - used / timed) / RANKS
    own = min(each["cpu"] / each["wall"] for each in answers)
    return Visit(median(steps), max(each["probe"] for each in answers), own, foreign)
