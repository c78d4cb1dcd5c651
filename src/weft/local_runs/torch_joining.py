"""How a rank joins a torch process group, and how it leaves."""

import torch
import torch.distributed as dist

from weft.local_runs.rank_server import ServedRank, serve


def join(backend: str) -> None:
    """Initialize the process group, with one thread."""
    torch.set_num_threads(1)
    if backend == "weft":
        import weft.torch  # noqa: F401 - it registers the backend
    dist.init_process_group(backend)


def answer_until_told(address: str, rank: ServedRank) -> None:
    """Serve requests at ``address``, then leave the group."""
    try:
        serve(address, rank)
    finally:
        dist.destroy_process_group()
