"""Processes are started, answer in the order of ranks, and are gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.runtime.leftovers import eventually, files, nothing_left
from weft.errors import RankDiedError, RunError, RunTimeoutError, UsageError
from weft.runtime import spawn

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def _nothing_left():
    with nothing_left():
        yield


def describe(world, *args):
    world.barrier()
    return world.rank, world.num_ranks, world.timeout, args, repr(world)


def test_results_come_in_the_order_of_ranks():
    results = spawn(describe, 3, "a", 2, timeout=30)
    assert results == [(rank, 3, 30, ("a", 2), f"<World: rank {rank} of 3>") for rank in range(3)]


def test_a_world_may_have_one_rank():
    assert spawn(describe, 1, timeout=30)[0][:2] == (0, 1)


def fail_on_one(world):
    if world.rank == 1:
        message = "this one"
        raise LookupError(message)
    world.barrier()


def test_an_exception_comes_home_with_its_traceback():
    with pytest.raises(RunError, match="rank 1 raised LookupError: this one") as caught:
        spawn(fail_on_one, 3, timeout=30)
    assert "in fail_on_one" in str(caught.value)
    assert "raise LookupError(message)" in str(caught.value)


def killed_by_a_number(world):
    os.kill(os.getpid(), signal.SIGRTMIN + 1)  # which Python has no name for
    world.barrier()


def test_a_signal_without_a_name_is_a_number():
    with pytest.raises(RankDiedError, match=f"died .signal {signal.SIGRTMIN + 1}"):
        spawn(killed_by_a_number, 1, timeout=30)


def exit_on_one(world):
    if world.rank == 1:
        os._exit(3)
    world.barrier()


def test_a_process_that_just_ends_is_a_rank_that_died():
    with pytest.raises(RankDiedError, match=r"rank 1 died \(exit code 3\)"):
        spawn(exit_on_one, 2, timeout=30)


def return_lambda(world):
    return lambda: world.rank


def test_a_result_that_cannot_be_sent_is_an_error():
    with pytest.raises(RunError, match=r"rank . raised .*pickle"):
        spawn(return_lambda, 2, timeout=30)


def test_a_function_that_cannot_be_sent_is_an_error():
    with pytest.raises(UsageError, match="cannot be pickled"):
        spawn(lambda world: world.rank, 2, timeout=30)


@pytest.mark.parametrize("ranks", [0, -1])
def test_no_ranks_are_an_error(ranks):
    with pytest.raises(UsageError, match="ranks: must be >= 1"):
        spawn(describe, ranks)


def test_a_timeout_must_be_positive():
    with pytest.raises(UsageError, match=r"timeout: must be positive \(got 0"):
        spawn(describe, 2, timeout=0)


WAITING = """
    import sys
    from pathlib import Path
    from weft.runtime import spawn

    def wait(world, folder):
        (Path(folder) / f"{world.rank}").write_text(str(__import__("os").getpid()))
        if world.rank > 0:
            world.barrier()
        else:
            sys.stdin = open(Path(folder) / "never")  # waits outside weft, too

    if __name__ == "__main__":
        spawn(wait, 3, sys.argv[1], timeout=600)
"""


def start_waiting(tmp_path):
    """A program whose ranks wait for ever, in a process group of its own."""
    script = tmp_path / "waiting.py"
    script.write_text(textwrap.dedent(WAITING))
    os.mkfifo(tmp_path / "never")
    program = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    assert eventually(lambda: all((tmp_path / str(rank)).exists() for rank in range(3)))
    assert eventually(lambda: all((tmp_path / str(rank)).read_text() for rank in range(3)))
    return program, [int((tmp_path / str(rank)).read_text()) for rank in range(3)]


def is_gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.parametrize("whole_group", [True, False], ids=["group", "parent"])
def test_ctrl_c_ends_everything(tmp_path, whole_group):
    program, ranks = start_waiting(tmp_path)
    os.kill(-program.pid if whole_group else program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=30)
    assert program.returncode != 0
    assert b"KeyboardInterrupt" in errors
    assert eventually(lambda: all(map(is_gone, ranks)))
    assert not files()


def test_ranks_do_not_outlive_a_killed_parent(tmp_path):
    program, ranks = start_waiting(tmp_path)
    program.kill()
    program.communicate(timeout=30)
    assert eventually(lambda: all(map(is_gone, ranks)))
    assert not files()


def stop_one_and_return(world):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return world.rank


def test_a_stopped_rank_does_not_keep_those_that_return():
    with pytest.raises(RunTimeoutError, match="rank 1 was stopped by a signal for 1 s"):
        spawn(stop_one_and_return, 2, timeout=1)


def rest_longer_than_the_timeout(world):
    time.sleep(1.5)
    return world.rank


def test_a_rank_may_compute_longer_than_the_timeout():
    assert spawn(rest_longer_than_the_timeout, 2, timeout=0.5) == [0, 1]
