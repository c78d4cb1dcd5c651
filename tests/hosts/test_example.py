"""The example of a trainer and its workers runs as its page says."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    *(pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.slow),
    pytest.mark.timeout(120),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "weight_update.py"


def test_workers_follow_a_trainer():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(EXAMPLE), "--pretend-hosts"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("version ")]) == 6
