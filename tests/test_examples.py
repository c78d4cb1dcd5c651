"""Examples run as their users run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_plan_and_apply_trains_by_its_plan_and_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "plan_and_apply.py", "--steps", "6"],
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "planned on cpu" in done.stdout
    assert "all_reduce" in done.stdout
    first, last = done.stdout.split("loss ")[1].split(" in ")[0].split(" -> ")
    assert float(last) < float(first)


@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_watch_training_names_the_rank_that_loads_slowly(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, EXAMPLES / "watch_training.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "STEPS": "40"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "slowest rank 1" in done.stdout
    assert "slowest is rank 1" in done.stdout
    assert (tmp_path / "overlap.html").stat().st_size > 0
