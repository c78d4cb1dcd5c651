"""What every rank is told when one disagrees, dies or does not come; and how groups end."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.torch.ranks import on_ranks
from weft.errors import DisagreeError, RankDiedError, RunError, RunTimeoutError

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]


def other_sizes():
    dist.all_reduce(torch.zeros(10 + dist.get_rank()))


def other_dtypes():
    dist.all_reduce(torch.zeros(8, dtype=(torch.int32, torch.float32)[dist.get_rank() == 0]))


def other_operations():
    dist.all_reduce(torch.zeros(8), (dist.ReduceOp.MAX, dist.ReduceOp.SUM)[dist.get_rank() == 0])


def other_collectives():
    if dist.get_rank() == 0:
        dist.broadcast(torch.zeros(8), 0)
    else:
        dist.all_reduce(torch.zeros(8))


def other_sizes_later():
    dist.all_reduce(torch.zeros(10))
    dist.all_reduce(torch.zeros(11))
    work = dist.all_reduce(torch.zeros(10 + dist.get_rank() % 2), async_op=True)
    work.wait()


def other_splits():
    size = dist.get_world_size()
    given = [2 + dist.get_rank()] * size
    dist.all_to_all_single(torch.empty(2 * size), torch.empty(sum(given)), [2] * size, given)


def one_dies():
    dist.all_reduce(torch.zeros(8))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(8))


def one_dies_under_a_future():
    dist.all_reduce(torch.zeros(8))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work: Any = dist.all_reduce(torch.zeros(8), async_op=True)
    work.get_future().wait()


def one_does_not_come():
    world: Any = dist.group.WORLD
    if dist.get_rank() != 1:
        world.monitored_barrier(timedelta(seconds=1))
    else:
        dist.recv(torch.zeros(1), 0)  # never sent: ends when the others give up


def told(function):
    """Run, and give the error that this rank was told."""
    try:
        function()
    except RunError as error:
        return type(error).__name__, str(error)
    except RuntimeError as error:  # a future of torch loses the type
        return "RuntimeError", str(error)
    return "", ""


MISMATCHES = (other_sizes, other_dtypes, other_operations, other_collectives, other_sizes_later)


@pytest.mark.parametrize("function", MISMATCHES, ids=lambda f: f.__name__)
def test_ranks_that_disagree_are_all_told(function):
    answers = on_ranks(told, 2, function)
    assert {name for name, _ in answers} == {DisagreeError.__name__}


def test_splits_that_do_not_fit_are_told():
    answers = on_ranks(told, 2, other_splits)
    assert {name for name, _ in answers} <= {DisagreeError.__name__, RunError.__name__}


@pytest.mark.parametrize("function", [one_dies, one_dies_under_a_future])
def test_a_rank_that_dies_is_named(function):
    with pytest.raises(RankDiedError, match="rank 1 died"):
        on_ranks(function, 3)


def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(RunTimeoutError, match="rank 1 did not come"):
        on_ranks(one_does_not_come, 2)


SCRIPT = """
import torch, torch.distributed as dist
import weft.torch
dist.init_process_group("weft")
x = torch.full((4,), dist.get_rank() + 1.0)
dist.all_reduce(x)
dist.all_reduce(x, async_op=True).get_future().wait()
print("sum", x[0].item(), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["dist.destroy_process_group()", ""], ids=["destroyed", "left"])
def test_torchrun_starts_a_script_that_ends(tmp_path, end):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(end=end))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("6.0") == 2  # the two may print into each other
