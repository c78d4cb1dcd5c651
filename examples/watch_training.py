"""A training run that is watched: two CPU ranks, one of which loads its data too slowly.

torchrun --standalone --nproc-per-node 2 examples/watch_training.py
weft watch --once          # in another terminal, while it runs or afterwards
"""

import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

import weft.torch

SLOW = float(os.environ.get("SLOW_LOADING", "0.02"))  # seconds in every step of rank 1
STEPS = int(os.environ.get("STEPS", "60"))


def batches(rank: int) -> Iterator[torch.Tensor]:
    """Yield batches; rank 1 waits for its data."""
    for _ in range(STEPS):
        if rank == 1:
            time.sleep(SLOW)
        yield torch.randn(64, 256)


def main() -> None:
    """Train on every rank, with a monitor and one profile."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trace = os.environ.get("TRACE")  # rank{rank}.json keeps the profile of each rank
    report = weft.torch.overlap_report(every=100, html="overlap.html", trace=trace)
    plan = schedule(wait=10, warmup=2, active=5, repeat=1)
    with (
        weft.torch.monitor(interval=1.0, log=print),
        profile(
            activities=[ProfilerActivity.CPU],
            schedule=plan,
            on_trace_ready=report,
            record_shapes=True,
        ) as prof,
    ):
        for batch in batches(rank):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
