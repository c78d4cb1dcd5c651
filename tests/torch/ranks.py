"""Start ranks that have a weft group, and a Gloo group for comparison."""

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import weft
import weft.torch

TIMEOUT = timedelta(seconds=60)


Prepare = tuple[Callable[..., None], Any]  # called with the rank and what stands behind it


def on_ranks(
    function: Callable[..., Any],
    num_ranks: int,
    *args: Any,
    prepare: Prepare | None = None,
    backend: str = "weft",
) -> list[Any]:
    """Call ``function(*args)`` on ranks with a default group; return what they return."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        return weft.spawn(_on_rank, num_ranks, store, function, args, prepare, backend, timeout=60)


def _on_rank(
    world: weft.World,
    path: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    prepare: Prepare | None,
    backend: str,
) -> Any:
    torch.set_num_threads(1)
    # torch returns from new_group as soon as its own rank is connected. A rank that destroys its
    # groups right away then closes connections that a slower rank is still making.
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    if prepare is not None:
        prepare[0](world.rank, prepare[1])
    store = dist.FileStore(path, world.num_ranks)  # type: ignore[attr-defined]
    dist.init_process_group(
        backend, store=store, rank=world.rank, world_size=world.num_ranks, timeout=TIMEOUT
    )
    try:
        return function(*args)
    finally:
        dist.destroy_process_group()
