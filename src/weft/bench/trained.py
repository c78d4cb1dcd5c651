"""Small models trained for real, by rules that let the same step be measured again.

Every repetition has fresh processes, pinned, that keep their memory; models and backends take
turns in it. What was measured does not count if ranks did not have their cores to themselves: a
visit by what others used meanwhile and by a copy before it, a step by a product on either side.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np

from weft.bench.drawn_models import RANKS, Drawn, case_of
from weft.bench.team import Team
from weft.bench.teams import rank_starts
from weft.runtime.calm import busy_seconds
from weft.torch.core_pace import still_calm
from weft.torch.steady import SETTINGS

BACKENDS = ("gloo", "weft")
_VISITS = 4  # of each model and backend in a repetition, in turn
_SECONDS = 0.3  # of steps in a visit
_OWN, _FOREIGN, _PROBE = 0.9, 0.02, 1.1  # what a visit may show to count

Key = tuple[str, str]  # a model's name and a backend


class Stepped(NamedTuple):
    """A step of all ranks, and what a product took on each of their cores beside it."""

    seconds: float
    products: tuple[float, ...]


@dataclass
class Visit:
    """Some steps of one model, and whether the machine was its own meanwhile."""

    steps: list[Stepped]
    probe: float
    own: float
    foreign: float


@dataclass
class Measured:
    """All visits of one model and backend, by repetition."""

    visits: list[list[Visit]] = field(default_factory=list)

    def clean(self) -> list[float]:
        """Give the medians of repetitions, of steps that nothing disturbed."""
        return [median(s.seconds for s in each) for each in self._kept if each]

    @property
    def typical(self) -> float:
        """The median of all repetitions, whatever disturbed them."""
        return median(median(s.seconds for v in each for s in v.steps) for each in self.visits)

    @property
    def seconds(self) -> float:
        """The median of the repetitions."""
        return median(self.clean())

    @property
    def pace(self) -> float:
        """How many times the best a product took beside the steps that count."""
        return median(self._slower(step) for each in self._kept for step in each)

    @property
    def floor(self) -> float:
        """How far a repetition is from the median of all, in the middle: nobody can do better."""
        middle = self.seconds
        return median(abs(each / middle - 1) for each in self.clean())

    @property
    def discarded(self) -> float:
        """The share of steps that did not count."""
        every = sum(len(visit.steps) for visit in self._all())
        return 1 - sum(map(len, self._kept)) / every

    @cached_property
    def _kept(self) -> list[list[Stepped]]:
        """Steps by repetition: of clean visits, if there are any, those of a calm machine.

        Where a core was hardly ever as fast as it can be, the calmest of them count.
        """
        clean = self._is_clean if any(map(self._is_clean, self._all())) else lambda _: True
        steps = [[s for v in each if clean(v) for s in v.steps] for each in self.visits]
        most = still_calm([self._slower(step) for each in steps for step in each])
        return [[step for step in each if self._slower(step) <= most] for each in steps]

    def _all(self) -> list[Visit]:
        return [visit for each in self.visits for visit in each]

    def _is_clean(self, visit: Visit) -> bool:
        """Tell whether ranks had their cores; as Gloo sleeps while it waits, the best counts."""
        own, probe = max(v.own for v in self._all()), min(v.probe for v in self._all())
        mine = visit.own >= _OWN * own and visit.probe <= _PROBE * probe
        return mine and visit.foreign <= _FOREIGN

    def _slower(self, step: Stepped) -> float:
        """Say how many times its best the slower core took."""
        return max(mine / best for mine, best in zip(step.products, self._best, strict=True))

    @cached_property
    def _best(self) -> list[float]:
        """What a product takes beside a step on each core at its best: few are faster still."""
        every = (step.products for visit in self._all() for step in visit.steps)
        return [float(np.quantile(mine, 0.05)) for mine in zip(*every, strict=True)]


def gathered(found: Iterable[Mapping[Key, list[Visit]]]) -> dict[Key, Measured]:
    """Put repetitions together."""
    by_key: dict[Key, Measured] = defaultdict(Measured)
    for each in found:
        for key, visits in each.items():
            by_key[key].visits.append(visits)
    return dict(by_key)


def repetition(models: Mapping[str, Drawn]) -> dict[Key, list[Visit]]:
    """Train every model by every backend for a while, in turn, in fresh processes."""
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
    steps = [
        Stepped(max(seconds), products)
        for seconds, products in zip(
            zip(*(each["steps"] for each in answers), strict=True),
            zip(*(each["products"] for each in answers), strict=True),
            strict=True,
        )
    ]
    timed = max(each["wall"] for each in answers)
    used = sum(each["cpu"] for each in answers)
    # What ranks do around the timed steps is theirs too: it is as busy as the steps are.
    foreign = max(0.0, busy / passed - used / timed) / RANKS
    own = min(each["cpu"] / each["wall"] for each in answers)
    return Visit(steps, max(each["probe"] for each in answers), own, foreign)
