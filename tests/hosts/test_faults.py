"""The errors of all ranks on every host when one disagrees, dies or does not come."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.hosts.ranks import CONNECTED_BY, on_hosts
from tests.runtime.leftovers import nothing_left
from tests.torch.test_faults import (
    MISMATCHES,
    error_of,
    left_with_a_future,
    other_splits,
    some_do_not_come,
)
from weft.errors import DisagreeError, RunTimeoutError

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(180)]


def other_lengths():
    if dist.get_rank() == 0:
        dist.send(torch.zeros(10), 1)
        dist.barrier()
    else:
        dist.recv(torch.zeros(11), 0)


@pytest.mark.parametrize("function", [*MISMATCHES, other_splits], ids=lambda f: f.__name__)
@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_hosts_that_disagree_all_get_an_error(function, hosts):
    answers = on_hosts(error_of, hosts, function)
    assert {name for name, _ in answers} == {DisagreeError.__name__}, answers


def test_a_message_of_another_length_is_an_error():
    answers = on_hosts(error_of, "ab", other_lengths)
    assert {name for name, _ in answers} == {DisagreeError.__name__}, answers


def test_a_host_that_does_not_come_is_named():
    with pytest.raises(RunTimeoutError, match="rank 1 on host b"):
        on_hosts(some_do_not_come, "ab")


SCRIPT = """
import json, os, signal, sys
from datetime import timedelta
import torch, torch.distributed as dist
import weft.torch
from weft.errors import RunError
victims, folder = json.loads(sys.argv[1]), sys.argv[2]
dist.init_process_group("weft", timeout=timedelta(seconds=30))
rank = dist.get_rank()
x = torch.ones(500_000)
try:
    for step in range(400):
        dist.all_reduce(x.clone(), async_op=bool(step % 2)) if step % 3 else dist.barrier()
        if step == 20 and rank in victims:
            os.kill(os.getpid(), signal.SIGKILL)
except RunError as error:
    with open(f"{folder}/{rank}", "w") as file:
        file.write(f"{type(error).__name__}: {error}")
dist.destroy_process_group()
"""


def start(folder: Path, hosts: str, victims: list[int]) -> list[subprocess.Popen[bytes]]:
    (folder / "script.py").write_text(SCRIPT)
    shared = {**os.environ, **CONNECTED_BY, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(len(hosts))}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29700 + os.getpid() % 200)}
    command = [sys.executable, str(folder / "script.py"), json.dumps(victims), str(folder)]
    return [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "WEFT_HOST": host})
        for rank, host in enumerate(hosts)
    ]


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param([3], id="a rank", marks=pytest.mark.slow),
        pytest.param([2], id="a leader"),
        pytest.param([2, 3], id="a whole host", marks=pytest.mark.slow),
    ],
)
def test_survivors_on_all_hosts_get_an_error_that_names_the_dead(tmp_path, victims):
    with nothing_left():
        ranks = start(tmp_path, "aabb", victims)
        try:
            codes = [rank.wait(timeout=100) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    survivors = [rank for rank in range(4) if rank not in victims]
    assert [codes[rank] for rank in survivors] == [0] * len(survivors)
    answers = {rank: (tmp_path / str(rank)).read_text() for rank in survivors}
    for answer in answers.values():
        assert answer.startswith("RankDiedError"), answers
        assert any(f"rank {victim}" in answer for victim in victims), answers


def test_a_rank_that_leaves_after_an_exception_does_not_wait_for_other_hosts():
    assert on_hosts(left_with_a_future, "ab") == [True, True]
