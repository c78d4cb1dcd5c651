"""What torchrun starts on every host of the test with network namespaces."""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import weft.torch
from tests.hosts.long_checks import LONG
from tests.torch.backend_checks import CHECKS, run_checks
from tests.torch.collective_cases import CASES, compare_all
from tests.torch.training_cases import train_all
from weft.errors import RunError


def everything(folder: Path) -> None:
    CHECKS.update(LONG)
    world: Any = dist.group.WORLD
    answer = {
        "paths": weft.torch.paths(),
        "hosts": list(world.channel.hosts.of),
        "cases": compare_all(list(CASES)),
        "checks": run_checks(list(CHECKS)),
        "losses": train_all(),
    }
    (folder / str(dist.get_rank())).write_text(json.dumps(answer))


def killed(folder: Path) -> None:
    """Reduce until the other host is gone."""
    try:
        while True:
            dist.all_reduce(torch.ones(300_000), async_op=False)
            (folder / "running").touch()
    except RunError as error:
        (folder / str(dist.get_rank())).write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("weft", timeout=timedelta(seconds=60))
    {"everything": everything, "killed": killed}[sys.argv[1]](Path(sys.argv[2]))
    dist.destroy_process_group()
