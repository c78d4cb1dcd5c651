"""Ranks that a launcher started find each other through its environment."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.runtime.leftovers import nothing_left
from weft.errors import RunError, RunTimeoutError, UsageError
from weft.runtime import env_rendezvous
from weft.runtime.stale_segments import PREFIX, SHARED_MEMORY, remove_stale_segments

SCRIPT = """
    import json, os, sys
    import numpy as np
    import weft.runtime
    from weft.collectives import direct

    world = weft.runtime.world(timeout=30)
    second = weft.runtime.world(timeout=30)
    data = np.arange(8, dtype=np.float32) + world.rank
    weft.runtime.run(direct.all_reduce(world.num_ranks, 32, dtype="float32"), world, {"data": data})
    second.barrier()
    if "fail" in sys.argv and world.rank == 1:
        raise ValueError("not today")
    if "fail" in sys.argv:
        world.barrier()
    name = os.path.join(sys.argv[1], str(world.rank))
    answer = {"data": data.tolist(), "torch": "torch" in sys.modules}
    open(name, "w").write(json.dumps(answer))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    with nothing_left():
        yield path


def environment(rank, num_ranks, tmp_path):
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": str(tmp_path),
    }


def start(script, tmp_path, num_ranks, *args):
    return [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), *args],
            env=environment(rank, num_ranks, tmp_path),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in reversed(range(num_ranks))
    ][::-1]


@pytest.mark.multiprocess
@pytest.mark.timeout(90)
def test_ranks_find_each_other_without_torch(script, tmp_path):
    for process in start(script, tmp_path, 3):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    for rank in range(3):
        answer = json.loads((tmp_path / str(rank)).read_text())
        assert answer == {"data": [3.0 * i + 3 for i in range(8)], "torch": False}


@pytest.mark.multiprocess
@pytest.mark.timeout(90)
def test_a_script_that_raises_tells_the_others(script, tmp_path):
    first, second = start(script, tmp_path, 2, "fail")
    errors = first.communicate(timeout=60)[1], second.communicate(timeout=60)[1]
    assert first.returncode == second.returncode == 1
    assert "ValueError: not today" in errors[1]
    assert "RunError: rank 1 raised ValueError: not today" in errors[0]


@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_torchrun_starts_a_world(script, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        answer = json.loads((tmp_path / str(rank)).read_text())
        assert answer == {"data": [2.0 * i + 1 for i in range(8)], "torch": False}


GOOD = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"RANK": None}, UsageError, "RANK not set"),
        ({"RANK": "first"}, UsageError, "expected integers .*first"),
        ({"RANK": "2"}, UsageError, "RANK must be from 0 to 1 .got 2."),
        ({"WORLD_SIZE": "4"}, RunError, "WORLD_SIZE is 4, but LOCAL_WORLD_SIZE is 2"),
    ],
)
def test_an_environment_that_does_not_fit_is_an_error(monkeypatch, change, kind, text):
    for name, value in {**GOOD, **change}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(kind, match=text):
        env_rendezvous.world(timeout=1)


def test_a_rank_without_rank_0_gives_up(monkeypatch, tmp_path):
    for name, value in environment(1, 2, tmp_path).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunTimeoutError, match=r"timed out after 0.05 s: rank 0 did not come"):
        env_rendezvous.world(timeout=0.05)


def test_two_launches_with_one_name_are_separate(tmp_path):
    path = tmp_path / "taken"
    with env_rendezvous._held(path, 1) as file:
        assert os.fstat(file).st_mode & 0o777 == 0o600
        with (
            pytest.raises(RunTimeoutError, match="taken belongs to another world"),
            env_rendezvous._held(path, 0.05),
        ):
            pass
    assert not path.exists()


@pytest.fixture
def leftover(tmp_path):
    path = SHARED_MEMORY / f"{PREFIX}test-{tmp_path.name}-{os.getpid()}"
    path.touch(mode=0o600)
    yield path
    path.unlink(missing_ok=True)


def test_what_a_dead_world_left_is_removed(leftover):
    assert leftover.name in remove_stale_segments()
    assert not leftover.exists()


@pytest.mark.parametrize("lock", [fcntl.LOCK_SH, fcntl.LOCK_EX])
def test_what_a_live_world_owns_stays(leftover, lock):
    with leftover.open() as file:
        fcntl.flock(file, lock)
        assert leftover.name not in remove_stale_segments()
        assert leftover.exists()


def test_a_name_that_nobody_holds_is_not_believed(tmp_path):
    stale = tmp_path / "stale"
    stale.write_text("/weft-of-a-dead-launch")
    assert env_rendezvous._read_if_held(stale) == ""
    with stale.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert env_rendezvous._read_if_held(stale) == "/weft-of-a-dead-launch"
    assert env_rendezvous._read_if_held(Path(tmp_path / "absent")) == ""
