"""Links that drop everything without a word, and processes that end with calls between hosts."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.namespaces import NetHost, hosts_on_switch
from tests.hosts.ranks import CONNECTED_BY
from tests.runtime.leftovers import eventually

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
CUT = """
import sys, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
import weft.torch
from weft.errors import RunError
what, folder = sys.argv[1], Path(sys.argv[2])
dist.init_process_group("weft", timeout=timedelta(seconds=5))
rank, x = dist.get_rank(), torch.ones(200_000)
begin = time.monotonic()
try:
    for step in range(1_000_000):
        begin = time.monotonic()
        if what == "collectives":
            dist.all_reduce(x.clone())
        elif step % 2 == rank:
            dist.send(x, 1 - rank)
        else:
            dist.recv(x, 1 - rank)
        if step == 20:
            (folder / f"running{rank}").touch()
except RunError as error:
    seconds = time.monotonic() - begin
    (folder / f"{rank}.part").write_text(f"{seconds} {type(error).__name__} {error}")
    (folder / f"{rank}.part").rename(folder / str(rank))
    sys.exit(3)
"""
# The main thread ends while another one communicates; what else is under way is in arguments.
EXIT = """
import sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
import weft.torch
dist.init_process_group("weft", timeout=timedelta(seconds=20))
rank, x = dist.get_rank(), torch.ones(1 << 20)
dist.barrier()
started = threading.Event()

def loop():
    tag = 0
    while True:
        if sys.argv[1] == "collectives":
            dist.all_reduce(x.clone())
        else:
            works = [dist.isend(x, 1 - rank, tag=tag), dist.irecv(x.clone(), 1 - rank, tag=tag)]
            for work in works:
                work.wait()
        tag += 1
        if tag == 3:
            started.set()

threading.excepthook = lambda _: None
threading.Thread(target=loop, daemon=True).start()
started.wait()
if rank == 1:
    time.sleep(0.2)
sys.exit(3 + rank)
"""


def start(
    script: Path, hosts: Sequence[str], addresses: Sequence[NetHost], *arguments: str
) -> list[subprocess.Popen[bytes]]:
    """Start one rank on each host: a name, or a namespace."""
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(len(hosts))}
    shared["MASTER_ADDR"] = addresses[0].address if addresses else "127.0.0.1"
    shared["MASTER_PORT"] = str(29300 + os.getpid() % 300)
    started = []
    for rank, host in enumerate(hosts):
        there = addresses[rank].environment if addresses else {**CONNECTED_BY, "WEFT_HOST": host}
        words = [sys.executable, str(script), *arguments]
        started.append(
            subprocess.Popen(
                addresses[rank].command(words) if addresses else words,
                env={**shared, **there, "RANK": str(rank)},
                cwd=ROOT,
                stderr=subprocess.DEVNULL,
            )
        )
    return started


def end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        rank.kill()
        rank.wait()


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.parametrize("what", ["collectives", "messages"])
def test_a_link_that_drops_everything_raises_on_both_sides_within_the_timeout(tmp_path, what):
    (tmp_path / "script.py").write_text(CUT)
    with hosts_on_switch(1e9 / 8, 2) as hosts:
        ranks = start(tmp_path / "script.py", "ab", hosts, what, str(tmp_path))
        try:
            running = [tmp_path / f"running{rank}" for rank in range(2)]
            assert eventually(lambda: all(file.exists() for file in running), 60)
            switch = hosts[0].name.rpartition("-")[0] + "-2"
            subprocess.run(
                ["ip", "-n", switch, "link", "set", "port1", "nomaster"], check=True
            )  # frames end here; both hosts see a link that is up
            assert eventually(lambda: all((tmp_path / str(r)).exists() for r in range(2)), 40)
            codes = [rank.wait(timeout=30) for rank in ranks]
        finally:
            end(ranks)
    assert codes == [3, 3]
    for rank in range(2):
        seconds, name, text = (tmp_path / str(rank)).read_text().split(" ", 2)
        assert name == "RunTimeoutError", text
        assert f"rank {1 - rank}" in text
        assert float(seconds) < 15  # the timeout is 5 s; TCP itself takes 15 minutes


@pytest.mark.parametrize("what", ["collectives", pytest.param("messages", marks=pytest.mark.slow)])
def test_a_process_that_exits_with_calls_under_way_ends_with_its_own_status(tmp_path, what):
    (tmp_path / "script.py").write_text(EXIT)
    ranks = start(tmp_path / "script.py", "ab", (), what)
    begin = time.monotonic()
    try:
        codes = [rank.wait(timeout=60) for rank in ranks]
    finally:
        end(ranks)
    assert codes == [3, 4]
    assert time.monotonic() - begin < 60
