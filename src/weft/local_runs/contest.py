"""Contestants in turn, round by round: only one of them is awake at any time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from weft.calibration.noise import foreign_share
from weft.local_runs.rank_team import Team

LONG_ENOUGH = 10e-3  # seconds of one measurement: many calls of a short one
_MOST_CALLS = 1 << 16
_PATIENCE = 6.0  # seconds for all rounds of an entry: spinning ranks on a busy core take minutes


@dataclass(frozen=True, slots=True)
class Peer:
    """The duration of a peer, and the median over the rounds of its time / weft's time."""

    seconds: float
    ratio: float

    @classmethod
    def of(cls, theirs: Sequence[float], mine: Sequence[float]) -> "Peer":
        """Compare a peer with weft; ratios are taken between times of the same round."""
        ratios = [their / my for their, my in zip(theirs, mine, strict=False)]
        return cls(median(theirs), median(ratios))


class Entry(NamedTuple):
    """What a contestant is asked to do."""

    team: Team
    case: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds of every round, and what was answered before and after them, by entry.

    ``foreign`` is the share of the cores that others used while all contestants slept.
    """

    times: dict[str, tuple[float, ...]]
    answers: dict[str, list[Any]]
    foreign: float = 0.0
    received: dict[str, list[int]] = field(default_factory=dict)  # bytes by each rank's links

    def beside(self, peer: str, mine: str) -> Peer:
        """Compare a peer with one of weft's."""
        return Peer.of(self.times[peer], self.times[mine])

    def peers(self, names: Sequence[str], mine: str) -> dict[str, Peer]:
        """Compare several."""
        return {name: self.beside(name, mine) for name in names}

    def wrong(self, name: str) -> int:
        """Add up the answers of an entry, where they are counts of what is wrong."""
        return sum(self.answers[name])


def compete(entries: Mapping[str, Entry], rounds: int, *, patience: float | None = None) -> Outcome:
    """Let all entries do their work, A B A B, and check it before and after.

    An entry that takes very long has fewer rounds than the others, but one at least. Where one
    call takes longer than all rounds may, that call is its round, and it is not checked again.
    """
    patience = patience or _PATIENCE
    for name, (team, case) in entries.items():
        team.ask("open", name, case=case)
    checked = {name: _answers(name, entry.team) for name, entry in entries.items()}
    answers = {name: before for name, (before, _) in checked.items()}
    received = {name: so_far for name, (_, so_far) in checked.items()}
    tried = {name: _calls_of(name, entry.team) for name, entry in entries.items()}
    times = {name: [each.seconds] if each.lasts(patience) else [] for name, each in tried.items()}
    foreign = foreign_share()
    for _ in range(rounds):
        for name, entry in entries.items():
            calls = tried[name].calls
            if sum(times[name]) * calls < patience:
                times[name].append(_slowest(name, entry.team, calls))
    for name, entry in entries.items():
        if not tried[name].lasts(patience):
            after, received[name] = _answers(name, entry.team)
            answers[name] += after
        entry.team.ask("close", name)
    return Outcome({name: tuple(each) for name, each in times.items()}, answers, foreign, received)


def seconds_of(name: str, team: Team, times: int = 3) -> float:
    """Time one entry that is open, some times and long enough; the median counts."""
    calls = _calls_of(name, team).calls
    return median(_slowest(name, team, calls) for _ in range(times))


def _answers(name: str, team: Team) -> tuple[list[Any], list[int]]:
    replies = team.ask("answer", name)
    return [reply["answer"] for reply in replies], [reply["received"] for reply in replies]


class _Tried(NamedTuple):
    """How many calls are measured at once, and the seconds of one when they were last tried."""

    calls: int
    seconds: float

    def lasts(self, patience: float) -> bool:
        return self.calls * self.seconds >= patience


def _calls_of(name: str, team: Team) -> _Tried:
    """Choose how many calls are measured at once: the same number on every rank."""
    calls = 1
    while True:
        each = _slowest(name, team, calls)
        seconds = each * calls
        if seconds >= LONG_ENOUGH or calls >= _MOST_CALLS:
            return _Tried(calls, each)
        calls = min(_MOST_CALLS, calls * max(2, min(16, int(LONG_ENOUGH / max(seconds, 1e-9)))))


def _slowest(name: str, team: Team, calls: int) -> float:
    """Return the seconds of a call; a collective takes as long as its slowest rank."""
    return max(float(reply["seconds"]) for reply in team.ask("time", name, calls=calls))
