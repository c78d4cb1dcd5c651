"""How a rank of a benchmark joins a group of torch, and how it leaves."""

import torch
import torch.distributed as dist

from weft.local_runs.rank_server import Rank, serve


def join(backend: str) -> None:
    """Become a rank of a group, in one thread."""
    torch.set_num_threads(1)
    if backend == "weft":
        import weft.torch  # noqa: F401 - it registers the backend
    dist.init_process_group(backend)


def answer_until_told(address: str, rank: Rank) -> None:
    """Do what is asked for at ``address``, then leave the group."""
    try:
        serve(address, rank)
    finally:
        dist.destroy_process_group()
