"""The time of all ranks of a group: that of the slowest."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def slowest(act: Callable[[], Any]) -> float:
    """Do it on all ranks at once; give the seconds of the slowest."""
    dist.barrier()
    begin = time.perf_counter()
    act()
    seconds = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)
