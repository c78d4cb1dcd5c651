"""The errors of all ranks when one disagrees, dies or does not come; and how groups end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weft.torch
from tests.torch.ranks import TIMEOUT, on_ranks
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


def one_dies_under_ddp():
    """DDP waits for its futures in C++."""
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.ones(2, 8)).sum().backward()


def some_do_not_come():
    dist.barrier()
    if dist.get_rank() == 0:
        weft.torch.monitored_barrier(timeout=timedelta(seconds=1))
    else:
        dist.recv(torch.zeros(1), 0)  # never sent: ends when the other gives up


def nobody_comes_to_a_group():
    """The group's own timeout counts, not the minute of the default group."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    dist.barrier(group)
    if dist.get_rank() == 0:
        began = time.monotonic()
        try:
            dist.all_reduce(torch.zeros(8), group=group)
        finally:
            assert time.monotonic() - began < 30
    else:
        while True:  # until the group is broken
            weft.torch.world_of(group).require_healthy()
            time.sleep(0.01)


def nobody_sends():
    dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=1))
    dist.barrier()
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(2))
    else:
        dist.recv(torch.zeros(2), 0)


def one_dies_before_it_sends():
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(torch.zeros(2), None if dist.get_rank() == 0 else 1)


def a_chain_of_futures_breaks():
    dist.all_reduce(torch.zeros(8))
    dist.all_reduce(torch.zeros(9))
    work: Any = dist.all_reduce(torch.zeros(8 + dist.get_rank()), async_op=True)
    chained = work.get_future().then(lambda future: future.value()[0] * 2)
    try:
        chained.wait()
    except RuntimeError as error:
        in_future = str(error)
    assert not work.is_success()
    assert isinstance(work.exception(), DisagreeError)
    assert str(work.exception()) in in_future
    work.wait()


def error_of(function):
    """Run, and return the error of this rank."""
    try:
        function()
    except RunError as error:
        return type(error).__name__, str(error)
    except RuntimeError as error:  # a future of torch loses the type
        return "RuntimeError", str(error)
    return "", ""


MISMATCHES = (other_sizes, other_dtypes, other_operations, other_collectives, other_sizes_later)


@pytest.mark.parametrize("function", MISMATCHES, ids=lambda f: f.__name__)
def test_ranks_that_disagree_all_get_an_error(function):
    answers = on_ranks(error_of, 2, function)
    assert {name for name, _ in answers} == {DisagreeError.__name__}


def test_mismatched_splits_are_an_error():
    answers = on_ranks(error_of, 2, other_splits)
    assert {name for name, _ in answers} <= {DisagreeError.__name__, RunError.__name__}


def test_a_rank_that_dies_is_named():
    with pytest.raises(RankDiedError, match="rank 1 died"):
        on_ranks(one_dies, 3)


@pytest.mark.parametrize("function", [one_dies_under_a_future, one_dies_under_ddp])
def test_a_future_names_a_rank_that_dies(function):
    with pytest.raises(RunError, match="rank 1 died"):  # a future of torch loses the type
        on_ranks(function, 3)


def test_all_ranks_that_do_not_come_are_named():
    for name, text in on_ranks(error_of, 3, some_do_not_come):
        assert name == RunTimeoutError.__name__
        assert "rank 0: timeout after 1 s at barrier" in text
        assert "rank 1 did not come (after call " in text
        assert "rank 2 did not come (after call " in text


def test_a_group_has_its_own_timeout():
    for name, text in on_ranks(error_of, 2, nobody_comes_to_a_group):
        assert name == RunTimeoutError.__name__
        assert "rank 0: timeout after 1 s at all_reduce(32 bytes, float32, sum)" in text
        assert "rank 1 did not come" in text


def test_a_message_that_never_comes_is_a_timeout_everywhere():
    answers = on_ranks(error_of, 2, nobody_sends)
    assert {name for name, _ in answers} == {RunTimeoutError.__name__}
    assert all("timeout after 1 s at " in text for _, text in answers)


def test_a_rank_that_dies_is_named_by_who_waits_for_anyones_message():
    with pytest.raises(RankDiedError, match="rank 1 died"):
        on_ranks(one_dies_before_it_sends, 3)


def test_what_went_wrong_comes_through_a_chain_of_futures():
    answers = on_ranks(error_of, 2, a_chain_of_futures_breaks)
    assert {name for name, _ in answers} == {DisagreeError.__name__}
    assert all("call " in text for _, text in answers)


def one_leaves_by_an_exception():
    store = dist.distributed_c10d._get_default_store()
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.zeros(8), group=pair)
    if dist.get_rank() == 1:
        dist.all_reduce(torch.zeros(8), group=pair, async_op=True)
        try:
            torch.zeros(8).reshape(9)
        except RuntimeError:
            dist.destroy_process_group(pair)
        store.set("left", "")
    else:
        store.wait(["left"], TIMEOUT / 3)


def test_who_leaves_by_an_exception_waits_for_nobody():
    on_ranks(one_leaves_by_an_exception, 2)


def stage_everything():
    """As where no process may read another's memory."""
    world = weft.torch.world_of()
    world.stages = True
    world.member.set_staging(True, 0)
    rank, size = dist.get_rank(), dist.get_world_size()
    ins = [torch.full((50_000 * rank + 3 * to,), 10.0 * rank + to) for to in range(size)]
    outs = [torch.empty(50_000 * of + 3 * rank) for of in range(size)]
    work: Any = dist.all_to_all(outs, ins, async_op=True)
    work.wait()
    assert all((out == 10.0 * of + rank).all() for of, out in enumerate(outs))
    outs = [torch.empty(40_000 + of) for of in range(size)]
    dist.all_gather(outs, torch.full((40_000 + rank,), 1.0 * rank))
    assert all((out == of).all() for of, out in enumerate(outs))
    if rank == 0:
        got = torch.empty(5000)
        senders = {dist.recv(got) for _ in range(size - 1)}
        assert senders == set(range(1, size))
    else:
        dist.send(torch.full((5000,), 1.0 * rank), 0)
    dist.barrier()


def test_lists_of_any_sizes_go_where_no_memory_can_be_read():
    on_ranks(stage_everything, 3)


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

ENDS = {
    "destroyed": "dist.destroy_process_group()",
    "left": "",
    # Work and a future under way that rank 1 never joins: nobody may hang or crash at exit.
    "busy": "if dist.get_rank() == 0: dist.all_reduce(x, async_op=True).get_future()",
    "forked": "import os\nif os.fork() == 0: raise SystemExit(0)\nos.wait()\ndist.barrier()",
}


OFTEN = "busy"  # covers most of what the others do; each costs seconds
EVERY_END = [
    pytest.param(end, id=name, marks=() if name == OFTEN else pytest.mark.slow)
    for name, end in ENDS.items()
]


@pytest.mark.parametrize("end", EVERY_END)
def test_torchrun_starts_a_script_that_ends(tmp_path, end):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(end=end))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("6.0") == 2  # the two may print into each other


def left_with_a_future():
    """Rank 0 leaves in a finally clause, with a future of a collective that rank 1 never joins."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    group, x = dist.new_group(), torch.ones(100_000)
    for asynchronous in (False, True):
        work = dist.all_reduce(x, group=group, async_op=asynchronous)
    work.wait()
    if rank == 0:
        with contextlib.suppress(ZeroDivisionError):
            future = dist.all_reduce(x, group=group, async_op=True).get_future()
            try:
                raise ZeroDivisionError
            finally:
                dist.destroy_process_group(group)
        store.set("left", "")
        return future.done()
    store.wait(["left"])
    return True


def test_a_rank_that_leaves_after_an_exception_does_not_wait_for_futures():
    assert on_ranks(left_with_a_future, 2) == [True, True]
