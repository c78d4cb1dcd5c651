"""What the share of ideal says, and hosts of a benchmark that need not exist."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import hosts, namespaces
from benchmarks.hosts import _share
from weft.errors import RunError, RunTimeoutError

seconds = st.floats(0.01, 10)


@given(seconds, seconds)
def test_all_is_hidden_at_the_longer_one_and_nothing_in_turn(gemm, comm):
    alone = {"gemm": gemm, "all_gather": comm}
    assert _share({**alone, "concurrent": max(gemm, comm)}) == pytest.approx(1)
    assert _share({**alone, "concurrent": gemm + comm}) == pytest.approx(0, abs=1e-9)


def test_without_iproute_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(RunError, match="iproute2"), namespaces.two_hosts(1e8):
        pass


def test_a_rank_that_does_not_end_is_named(monkeypatch):
    monkeypatch.setattr(hosts, "_DEADLINE", 0.0)
    with subprocess.Popen(["sleep", "60"]) as process:
        with pytest.raises(RunTimeoutError, match="rank 0"):
            hosts._wait_for([process])
        process.kill()


def test_a_command_that_fails_is_shown():
    with pytest.raises(RunError, match="no-such-thing"):
        namespaces._call(["ls", "no-such-thing"])
