import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.fakes import FAKE, fake_team, is_gone, state_of
from weft.errors import RunError, RunTimeoutError
from weft.local_runs import contest
from weft.local_runs import rank_team as team
from weft.local_runs.contest import ContestEntry, compete

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def fake(log, request):
    """Make teams that are closed when the test ends."""

    def make(**options):
        made = fake_team(log, **options)
        request.addfinalizer(made.close)
        return made

    return make


def test_contestants_take_turns(fake, log, monkeypatch):
    monkeypatch.setattr(contest, "LONG_ENOUGH", 0)  # one call is long enough
    teams = {name: fake(name=name, num_ranks=1) for name in ("a", "b")}
    outcome = compete({name: ContestEntry(each, {}) for name, each in teams.items()}, rounds=3)
    # Before: an answer of each and one call to see how long it takes. After: an answer of each.
    calls = log.read_text().split()[4:-2]
    assert [sorted(calls[n : n + 2]) for n in (0, 2, 4)] == [["a0", "b0"]] * 3  # in any order
    assert {name: len(times) for name, times in outcome.times.items()} == {"a": 3, "b": 3}


def test_a_short_call_is_made_many_times_by_all_ranks_alike(fake, log):
    contestant = fake(num_ranks=3, manner="count")
    outcome = compete({"fake": ContestEntry(contestant, {})}, rounds=1)
    first, last = outcome.answers["fake"][:3], outcome.answers["fake"][3:]
    assert first == [1, 1, 1]
    assert last[0] > 10
    assert len(set(last)) == 1


def test_what_a_liar_has_wrong_is_counted(fake):
    entries = {"liar": ContestEntry(fake(manner="lie"), {}), "honest": ContestEntry(fake(), {})}
    outcome = compete(entries, rounds=1)
    assert outcome.wrong("liar") == 5 * 2 * 2  # two ranks, before and after
    assert outcome.wrong("honest") == 0


def test_a_contestant_says_what_it_is(fake):
    assert fake(name="x").about == "fake x 1.0"


def test_a_contestant_that_cannot_start_says_why(fake):
    with pytest.raises(RunError, match=r"fake did not start: cannot find libfake\.so"):
        fake(manner="absent")


def test_an_error_of_a_rank_is_raised_with_its_name(fake):
    contestant = fake(manner="raise")
    contestant.ask("open", "w", case={})
    with pytest.raises(RunError, match="rank 0 of fake: ValueError: no such buffer"):
        contestant.ask("answer", "w")


def test_a_rank_that_dies_is_an_error_with_its_last_words(fake):
    contestant = fake(manner="die")
    contestant.ask("open", "w", case={})
    with pytest.raises(RunError, match="fake ended: out of memory"):
        contestant.ask("answer", "w")


def test_a_rank_that_crashes_says_where(fake):
    contestant = fake(num_ranks=1, manner="crash")
    contestant.ask("open", "w", case={})
    told = r"fake ended: a heap of rubble; Fatal Python error: Aborted; File .* in"
    with pytest.raises(RunError, match=told):
        contestant.ask("answer", "w")


def test_a_rank_that_hangs_is_not_waited_for_for_ever(monkeypatch, fake):
    monkeypatch.setattr(team, "ANSWER", 0.2)
    monkeypatch.setattr(team, "LEAVE", 0.2)
    contestant = fake(manner="hang")
    contestant.ask("open", "w", case={})
    with pytest.raises(RunTimeoutError, match="fake did not answer"):
        contestant.ask("answer", "w")


def test_ranks_sleep_while_they_are_not_asked(fake):
    contestant = fake()
    contestant.ask("open", "w", case={})
    deadline = time.monotonic() + 30
    while {state_of(process.pid) for process in contestant._processes} != {"S"}:
        assert time.monotonic() < deadline


def test_pinning_holds_for_every_rank(fake):
    contestant = fake(num_ranks=2)
    contestant.ask("pin", "")
    cores = sorted(os.sched_getaffinity(0))
    for rank, process in enumerate(contestant._processes):
        assert os.sched_getaffinity(process.pid) == {cores[rank % len(cores)]}


def test_whoever_does_not_go_is_ended_with_all_it_started(log, monkeypatch):
    monkeypatch.setattr(team, "LEAVE", 0.2)
    contestant = fake_team(log, num_ranks=1, manner="stubborn")
    pids = [contestant._processes[0].pid, int(log.read_text())]
    contestant.close()
    assert all(is_gone(pid) for pid in pids)


def test_an_entry_that_takes_very_long_has_fewer_rounds(fake, monkeypatch):
    monkeypatch.setattr(contest, "LONG_ENOUGH", 0)
    monkeypatch.setattr(contest, "_BUDGET", 1e-9)
    outcome = compete(
        {"slow": ContestEntry(fake(), {}), "slower": ContestEntry(fake(), {})}, rounds=3
    )
    assert [len(times) for times in outcome.times.values()] == [1, 1]
    assert outcome.compare("slower", "slow").ratio > 0


def test_a_call_that_outlasts_all_rounds_is_made_twice_only(fake, log, monkeypatch):
    monkeypatch.setattr(contest, "LONG_ENOUGH", 0)
    contestant = fake(num_ranks=1)
    outcome = compete({"slow": ContestEntry(contestant, {})}, rounds=3, budget=1e-9)
    assert len(outcome.times["slow"]) == len(outcome.answers["slow"]) == 1
    assert len(log.read_text().split()) == 2


_KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from tests.benchmarks.fakes import fake_team
team = fake_team(sys.argv[2], manner=sys.argv[3], leash=sys.argv[3] == "hang")
if sys.argv[3]:
    team.ask("open", "w", case={})
    for line in team._lines:
        line.write('{"do": "answer", "name": "w"}\\n')
        line.flush()
print(*[process.pid for process in team._processes], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("manner", ["", "hang"])
def test_a_bench_that_is_killed_leaves_no_rank(log, manner):
    root = str(Path(FAKE).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, root, str(log), manner],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert all(is_gone(int(pid)) for pid in done.stdout.split())
