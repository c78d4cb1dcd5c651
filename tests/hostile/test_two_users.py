"""Two users on one machine: neither reads nor disturbs the other's worlds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.errors import RunError
from weft.runtime import env_rendezvous
from weft.runtime.stale_segments import PREFIX

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming two users needs root")


@pytest.mark.multiprocess
def test_another_user_can_neither_read_nor_disturb_a_world():
    command = [sys.executable, "-m", "tests.hostile.two_users"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["worked"] == []
    assert found["good"] == [True, True]
    assert found["left"] == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rendezvous_file_of_another_user_is_an_error_at_once(tmp_path, monkeypatch, rank):
    """Its name follows from the launcher's, so anybody who knows that can be first."""
    monkeypatch.setattr(env_rendezvous, "SHARED_MEMORY", tmp_path)
    known = {"RANK": str(rank), "LOCAL_RANK": str(rank)} | dict.fromkeys(
        ("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2"
    )
    for key, value in known.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(env_rendezvous, "_name", lambda *_: "taken")
    taken = tmp_path / f"{PREFIX}taken"
    taken.touch()
    os.chown(taken, 64002, 64002)
    with pytest.raises(RunError, match="belongs to another user"):
        env_rendezvous.world(timeout=60)
