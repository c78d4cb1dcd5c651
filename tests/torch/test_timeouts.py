"""Every timeout says that it timed out, after how long, and who is missing."""

import os
import re
import threading
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

import weft.torch
from tests.torch.ranks import on_ranks
from weft.errors import RunTimeoutError
from weft.runtime import spawn
from weft.torch.backend.store_rendezvous import rendezvous
from weft.torch.hosts.serial_executor import SerialExecutor

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]

SHORT = timedelta(seconds=0.5)


def error_of(act):
    """What an act raises: the name of its type and its text."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - it is the result
        return type(error).__name__, str(error)
    return "", ""


TENSORS = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(4)),
    "all_reduce async": lambda: waited(dist.all_reduce(torch.ones(4), async_op=True)),
    "all_gather": lambda: dist.all_gather([torch.ones(4)] * 2, torch.ones(4)),
    "barrier": dist.barrier,
    "monitored_barrier": lambda: weft.torch.monitored_barrier(timeout=SHORT),
    "recv": lambda: dist.recv(torch.ones(4), 1),
    "recv of any": lambda: dist.recv(torch.ones(4)),
    "irecv": lambda: waited(dist.irecv(torch.ones(4), 1)),
    "send": lambda: dist.send(torch.ones(100_000), 1),
}
# A wait of its own timeout: only the wait is over, and the work goes on.
WAITS = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(4), async_op=True).wait(SHORT),
    "irecv": lambda: waited(dist.irecv(torch.ones(4), 1), SHORT),
}


def wait_for(event: threading.Event) -> None:
    event.wait()


def waited(work, *timeout):
    work.wait(*timeout)


def alone(rank, pipe, act):
    """What an act of rank 0 raises while rank 1 is there and does nothing."""
    if rank == 1:
        pipe.read_text()  # until the other one has closed it
        return "", ""
    with pipe.open("w"):
        return error_of(act)


def one_waits(pipe, calls, name):
    dist.all_reduce(torch.ones(4))  # so that it is prepared
    dist.all_gather([torch.ones(4)] * 2, torch.ones(4))
    dist.barrier()
    group: Any = dist.group.WORLD
    if calls == "tensors":
        group.set_timeout(SHORT)
    return alone(dist.get_rank(), pipe, (TENSORS if calls == "tensors" else WAITS)[name])


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("name", TENSORS)
def test_a_call_to_which_nobody_comes_timed_out(pipe, name):
    kind, text = on_ranks(one_waits, 2, pipe, "tensors", name)[0]
    assert kind == "RunTimeoutError"
    assert "timeout after 0.5 s" in text
    if name != "recv of any":
        assert "rank 1 did not come" in text


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_is_over_timed_out(pipe, name):
    kind, text = on_ranks(one_waits, 2, pipe, "waits", name)[0]
    assert kind == "NotDoneError"
    assert re.search(r"timed out.* after 0.5 s", text)


ARRAYS = {
    "all_reduce": lambda world: world.all_reduce(np.ones(4)),
    "all_reduce async": lambda world: waited(world.all_reduce(np.ones(4), async_op=True)),
    "recv": lambda world: world.recv(np.ones(4), 1),
    "send": lambda world: world.send(np.ones(100_000), 1),
    "empty": lambda world: world.empty(4),
}


def one_of_a_world_waits(world, pipe, name):
    world.all_reduce(np.ones(4))
    world.set_timeout(0.5)
    return alone(world.rank, pipe, lambda: ARRAYS[name](world))


@pytest.mark.parametrize("name", ARRAYS)
def test_a_call_of_a_world_to_which_nobody_comes_timed_out(pipe, name):
    kind, text = spawn(one_of_a_world_waits, 2, pipe, name, timeout=30)[0]
    assert kind == "RunTimeoutError"
    assert "timeout after 0.5 s" in text
    assert "rank 1 did not come" in text


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_group_whose_ranks_do_not_start_timed_out(rank):
    others = [str(other) for other in range(3) if other != rank]
    with pytest.raises(RunTimeoutError, match=r"timeout after 0.5 s") as failure:
        rendezvous(HashStore(), rank, 3, SHORT)
    assert f"rank {', '.join(others)} did not come" in str(failure.value)


def test_a_call_of_several_hosts_that_is_not_done_timed_out():
    jobs, held = SerialExecutor("held"), threading.Event()
    job: Any = jobs.run(lambda: wait_for(held), async_op=True)
    try:
        with pytest.raises(RunTimeoutError, match=r"timed out: it was not done after 0.05 s"):
            job.wait(0.05)
    finally:
        held.set()
        jobs.close()
