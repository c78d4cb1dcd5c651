"""The time of all ranks of a group: that of the slowest."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist


class Took(NamedTuple):
    """Seconds of the slowest rank, and those its core worked of the busiest: all threads of it."""

    wall: float
    core: float


def took(act: Callable[[], Any]) -> Took:
    """Do it on all ranks at once."""
    dist.barrier()
    begin, worked = time.perf_counter(), time.process_time()
    act()
    each = (time.perf_counter() - begin, time.process_time() - worked)
    seconds = torch.tensor(each, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return Took(*map(float, seconds))


def slowest(act: Callable[[], Any]) -> float:
    """Do it on all ranks at once; return the seconds of the slowest."""
    return took(act).wall
