"""The duration of a call on all ranks of a group: that of the slowest rank."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist


class RankTiming(NamedTuple):
    """Wall seconds of the slowest rank, and CPU seconds, over all threads, of the busiest."""

    wall: float
    core: float


def time_on_ranks(act: Callable[[], Any]) -> RankTiming:
    """Call on all ranks at once and return the maxima over ranks."""
    dist.barrier()
    begin, worked = time.perf_counter(), time.process_time()
    act()
    each = (time.perf_counter() - begin, time.process_time() - worked)
    seconds = torch.tensor(each, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return RankTiming(*map(float, seconds))


def slowest(act: Callable[[], Any]) -> float:
    """Call on all ranks at once and return the wall seconds of the slowest."""
    return time_on_ranks(act).wall
