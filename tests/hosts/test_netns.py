"""Two hosts by two ranks: network namespaces with a shaped link, each started by torchrun."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.namespaces import NetHost, kill_processes, two_hosts
from tests.hosts.long_checks import LONG
from tests.runtime.leftovers import eventually
from tests.torch.backend_checks import CHECKS
from tests.torch.collective_cases import CASES
from tests.torch.training_cases import TRAININGS

pytestmark = [
    *(pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.netns, pytest.mark.slow),
    pytest.mark.timeout(600),
]

RATE = 1e9 / 8
ROOT = Path(__file__).parents[2]
Process = subprocess.Popen[str]


@contextmanager
def torchruns(hosts: Sequence[NetHost], module: str, *arguments: str) -> Iterator[list[Process]]:
    """Start two ranks on every host as a user would; nothing of it outlives the test."""
    port = str(20000 + os.getpid() % 10000)
    started = []
    for number, host in enumerate(hosts):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2"]
        torchrun += ["--nproc-per-node=2", f"--node-rank={number}"]
        torchrun += [f"--master-addr={hosts[0].address}", f"--master-port={port}"]
        environment = {**os.environ, **host.environment, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            host.command([*torchrun, "-m", module, *arguments]),
            env={**environment, "PYTHONWARNINGS": "ignore"},
            cwd=ROOT,
            text=True,
        )
        started.append(process)
    try:
        yield started
    finally:
        for host, process in zip(hosts, started, strict=True):
            kill_processes(host.name)  # torchrun gives its ranks sessions of their own
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def hosts():
    with two_hosts(RATE) as made:
        yield made


@pytest.fixture(scope="module")
def answers(hosts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    with torchruns(hosts, "tests.hosts.netns_script", "everything", str(folder)) as started:
        codes = [process.wait(500) for process in started]
    assert codes == [0, 0]
    return [json.loads((folder / str(rank)).read_text()) for rank in range(4)]


def test_there_are_two_hosts_connected_by_gloo(answers):
    for answer in answers:
        assert answer["paths"]["between hosts"] == "gloo"
        assert answer["hosts"] == [0, 0, 1, 1]


@pytest.mark.parametrize("name", CASES)
def test_gives_what_gloo_gives(answers, name):
    assert not any(answer["cases"][name] for answer in answers), answers[0]["cases"][name]


@pytest.mark.parametrize("name", [*CHECKS, *LONG])
def test_checks(answers, name):
    assert not any(answer["checks"][name] for answer in answers), answers[0]["checks"][name]


@pytest.mark.parametrize("name", TRAININGS)
def test_losses_are_those_of_gloo(answers, name):
    for answer in answers:
        by_weft, by_gloo = answer["losses"][name]
        assert by_weft == pytest.approx(by_gloo, rel=1e-6)
        assert by_weft[-1] != by_weft[0]


def test_survivors_of_a_killed_host_get_an_error(hosts, tmp_path):
    with torchruns(hosts, "tests.hosts.netns_script", "killed", str(tmp_path)):
        assert eventually((tmp_path / "running").exists, 200)
        kill_processes(hosts[1].name)
        # Not for torchrun itself: that waits for its other half, which is gone.
        files = [tmp_path / str(rank) for rank in range(2)]
        assert eventually(lambda: all(file.exists() and file.stat().st_size for file in files), 200)
    for answer in (file.read_text() for file in files):
        assert answer.startswith("RankDiedError"), answer
        assert "rank 2" in answer, answer


def test_namespaces_are_gone_afterwards():
    with two_hosts(RATE) as made:
        assert all(host.name in listed() for host in made)
    assert not any(host.name in listed() for host in made)


def listed() -> str:
    command = ["ip", "netns", "list"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
