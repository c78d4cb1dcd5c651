"""Contestants for tests, as processes of their own."""

import sys
import time
from pathlib import Path

from weft.local_runs.parent_death import leashed
from weft.local_runs.rank_team import Start, Team

FAKE = Path(__file__).parent / "fake_rank.py"


def fake_start(name, rank, log, manner=""):
    return Start([sys.executable, str(FAKE), name, str(rank), str(log), manner], {})


def fake_team(log, name="fake", num_ranks=2, manner="", *, leash=False):
    """Start a team; on a leash it ends with this process, even in the midst of its work."""
    starts = [fake_start(name, rank, log, manner) for rank in range(num_ranks)]
    if leash:
        starts = [Start(leashed(start.words), {}) for start in starts]
    return Team(name, num_ranks, starts)


def is_gone(pid, seconds=30.0):
    """Wait until a process has ended; a zombie that nobody waits for has."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if state_of(pid) in ("", "Z"):
            return True
        time.sleep(0.02)
    return False


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
