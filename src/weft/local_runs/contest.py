"""Runs competing implementations in turn, round by round; only one of them is active at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.calibration.noise import foreign_share

if TYPE_CHECKING:
    # Ranks of peers import this module in environments that lack the native core.
    from weft.local_runs.rank_team import Team

LONG_ENOUGH = 10e-3  # seconds per measurement: short calls are repeated
_MOST_CALLS = 1 << 16
_REST = 2e-3  # seconds in which threads that spun after the last entry go to sleep
_BUDGET = 6.0  # seconds for all rounds of an entry: spinning ranks on a busy core take minutes


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """The duration of a peer, and the median over the rounds of its time / weft's time."""

    seconds: float
    ratio: float

    @classmethod
    def of(cls, theirs: Sequence[float], mine: Sequence[float]) -> PeerTiming:
        """Compare a peer with weft; ratios are taken between times of the same round."""
        ratios = [their / my for their, my in zip(theirs, mine, strict=False)]
        return cls(median(theirs), median(ratios))


class ContestEntry(NamedTuple):
    """The work that a team is asked to do."""

    team: Team
    case: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ContestOutcome:
    """Seconds of every round, and the answers before and after them, by entry.

    ``foreign`` is the fraction of the cores that other processes used while all teams were idle.
    """

    times: dict[str, tuple[float, ...]]
    answers: dict[str, list[Any]]
    foreign: float = 0.0
    received: dict[str, list[int]] = field(
        default_factory=dict
    )  # bytes received by each rank's links

    def compare(self, peer: str, mine: str) -> PeerTiming:
        """Compare a peer with an entry of weft."""
        return PeerTiming.of(self.times[peer], self.times[mine])

    def peers(self, names: Sequence[str], mine: str) -> dict[str, PeerTiming]:
        """Compare several peers with an entry of weft."""
        return {name: self.compare(name, mine) for name in names}

    def wrong(self, name: str) -> int:
        """Return the sum of the answers of an entry, if they count errors."""
        return sum(self.answers[name])


def compete(
    entries: Mapping[str, ContestEntry], rounds: int, *, budget: float | None = None
) -> ContestOutcome:
    """Run all entries in turn, in a random order, and check their results before and after.

    An entry that takes very long has fewer rounds than the others, but at least one. If one call
    takes longer than all rounds may, that call is its only round, and it is not checked again.
    """
    budget = budget or _BUDGET
    for name, (team, case) in entries.items():
        team.ask("open", name, case=case)
    checked = {name: _answers(name, entry.team) for name, entry in entries.items()}
    answers = {name: before for name, (before, _) in checked.items()}
    received = {name: so_far for name, (_, so_far) in checked.items()}
    tried = {name: _calls_of(name, entry.team) for name, entry in entries.items()}
    times = {name: [each.seconds] if each.lasts(budget) else [] for name, each in tried.items()}
    foreign = foreign_share()
    order, names = random.Random(0), list(entries)  # noqa: S311 - only to vary who follows whom
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            calls = tried[name].calls
            if sum(times[name]) * calls < budget:
                time.sleep(_REST)
                times[name].append(_slowest(name, entries[name].team, calls))
    for name, entry in entries.items():
        if not tried[name].lasts(budget):
            after, received[name] = _answers(name, entry.team)
            answers[name] += after
        entry.team.ask("close", name)
    return ContestOutcome(
        {name: tuple(each) for name, each in times.items()}, answers, foreign, received
    )


def seconds_of(name: str, team: Team, times: int = 3) -> float:
    """Return the median of several timings of an open entry."""
    calls = _calls_of(name, team).calls
    return median(_slowest(name, team, calls) for _ in range(times))


def _answers(name: str, team: Team) -> tuple[list[Any], list[int]]:
    replies = team.ask("answer", name)
    return [reply["answer"] for reply in replies], [reply["received"] for reply in replies]


class _Tried(NamedTuple):
    """How many calls are timed at once, and the seconds of one in the last trial."""

    calls: int
    seconds: float

    def lasts(self, budget: float) -> bool:
        return self.calls * self.seconds >= budget


def _calls_of(name: str, team: Team) -> _Tried:
    """Return how many calls are timed at once, equal on every rank."""
    calls = 1
    while True:
        each = _slowest(name, team, calls)
        seconds = each * calls
        if seconds >= LONG_ENOUGH or calls >= _MOST_CALLS:
            return _Tried(calls, each)
        calls = min(_MOST_CALLS, calls * max(2, min(16, int(LONG_ENOUGH / max(seconds, 1e-9)))))


def _slowest(name: str, team: Team, calls: int) -> float:
    """Return the seconds of a call on the slowest rank."""
    return max(float(reply["seconds"]) for reply in team.ask("time", name, calls=calls))
