"""Gloo by torch.distributed, as a peer of weft's collectives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from weft.bench.exchanges import Carrier, Exchange


def start(folder: str, rank: int, num_ranks: int) -> None:
    """Join the process group of Gloo."""
    torch.set_num_threads(1)
    meeting = f"file://{Path(folder) / 'gloo'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=num_ranks)


def stop() -> None:
    """Leave it."""
    dist.destroy_process_group()


def carried_by_gloo(exchange: Exchange, rank: int) -> Carrier:
    """Let Gloo do it, on ordinary tensors, which are all it has."""
    return carried_in(None, exchange, rank)


def carried_in(group: Any, exchange: Exchange, rank: int) -> Carrier:
    """Let a process group do it, by default the default one."""
    x, out = exchange.given(rank), np.empty(exchange.room(), np.float32)
    there, here = torch.from_numpy(out), torch.from_numpy(x)
    # torch 2.13 gave them new names and warns about the old ones.
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    acts: dict[str, Callable[[], Any]] = {
        "broadcast": lambda: dist.broadcast(here, 0, group=group),
        "all_gather": lambda: all_gather(there, here, group=group),
        "reduce_scatter": lambda: reduce_scatter(there, here, group=group),
        "all_reduce": lambda: dist.all_reduce(here, group=group),
        "all_to_all": lambda: dist.all_to_all_single(there, here, group=group),
    }
    return Carrier(x, out, acts[exchange.kind])
