"""A store that does not answer: its calls end, and the error says what happened."""

import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import GroupName

from weft.errors import RunTimeoutError
from weft.torch.backend.bounded_store import (
    BoundedStore,
    KeysMissingError,
    StoreUnreachableError,
)
from weft.torch.backend.store_rendezvous import rendezvous
from weft.torch.hosts.gloo_transport import GlooTransport
from weft.torch.hosts.host_map import HostMap

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]
SHORT = timedelta(seconds=0.5)

HOLDER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stopped_store():
    """A client of a store whose process is stopped."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            port = int(holder.stdout.readline())
            store = TCPStore("127.0.0.1", port, is_master=False, timeout=SHORT)
            store.set("before", "1")
            os.kill(holder.pid, signal.SIGSTOP)
            yield store
        finally:
            holder.kill()


def test_a_group_does_not_wait_for_a_store_whose_process_is_stopped(stopped_store):
    with pytest.raises(RunTimeoutError, match=r"store did not answer within 0.5 s.* is stopped"):
        rendezvous(stopped_store, 1, 2, SHORT)


def test_a_long_timeout_of_a_group_is_not_waited_for_an_answer(stopped_store, monkeypatch):
    monkeypatch.setattr("weft.torch.backend.bounded_store._ANSWER_SECONDS", 0.3)
    bounded = BoundedStore(stopped_store, timedelta(minutes=30))
    with pytest.raises(StoreUnreachableError, match=r"within 0.3 s"):
        bounded.check(["before"])


def test_values_are_passed_on_and_missing_keys_named():
    store = HashStore()
    bounded = BoundedStore(store, SHORT)
    bounded.set("a", "1")
    assert bounded.wait_for(["a"]) == [b"1"]
    assert bounded.compare_set("a", "1", "2") == b"2"
    with pytest.raises(KeysMissingError) as failure:
        bounded.wait_for(["a", "b"])
    assert failure.value.keys == ("b",)


def test_connections_to_other_hosts_do_not_wait_for_a_stopped_store(stopped_store):
    hosts = HostMap.from_identities(["a", "b"])
    with pytest.raises(RunTimeoutError, match=r"store did not answer within 1.5 s"):
        GlooTransport(stopped_store, 1, hosts, SHORT)


@pytest.fixture
def weft_group():
    dist.init_process_group("weft", store=HashStore(), rank=0, world_size=1, timeout=SHORT)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("weft_group")
def test_the_barrier_of_a_new_group_does_not_wait_for_a_stopped_store(stopped_store):
    with pytest.raises(RunTimeoutError, match=r"rank 0 .*store did not answer within 0.5 s"):
        distributed_c10d._store_based_barrier(0, stopped_store, GroupName("some"), 1, SHORT)


@pytest.mark.usefixtures("weft_group")
def test_the_barrier_of_a_new_group_names_ranks_that_do_not_come(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    store = HashStore()
    store.set("weft/barrier/some/2", "")
    with pytest.raises(RunTimeoutError, match=r"rank 0: .* rank 1 did not come"):
        distributed_c10d._store_based_barrier(0, store, GroupName("some"), 3, SHORT)


STOPPED_JOB = """
import os, signal
from datetime import timedelta
import torch, torch.distributed as dist
import weft.torch

dist.init_process_group("weft", timeout=timedelta(seconds=5))
for step in range(1000):
    if step == 3 and dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(16))
"""


@pytest.mark.timeout(200)
def test_survivors_of_a_stopped_rank_that_holds_the_store_end_with_its_name():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", STOPPED_JOB],
            env=os.environ | shared | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        for survivor in ranks[1:]:
            _, error = survivor.communicate(timeout=180)
            assert survivor.returncode == 1
            assert "RunTimeoutError" in error
            assert "rank 0" in error
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
