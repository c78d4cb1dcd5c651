"""A rank of a training job on CPUs, with and without ``weft.torch.monitor`` in turn.

Started by torchrun. Prints what a step takes either way, in seconds of the clock and of the core.
"""

import json
import resource
import sys
import time
from contextlib import nullcontext
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weft.torch

_BLOCK = 20  # steps in a row with or without the monitor


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(seconds: float, rounds: int) -> None:
    """Train a model whose step takes ``seconds`` of a core; alternate blocks of steps."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]), bucket_cap_mb=0.25
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, 256)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def timed(rows: int) -> float:
        nonlocal batch
        batch = torch.randn(rows, 256)
        used = _cpu()
        for _ in range(5):
            step()
        return (_cpu() - used) / 5

    for _ in range(5):
        step()
    rows = torch.tensor([64.0 * max(1.0, seconds / timed(64))])
    dist.all_reduce(rows, op=dist.ReduceOp.MIN)
    rows *= max(0.25, seconds / timed(int(rows)))  # larger batches take less a row
    dist.all_reduce(rows, op=dist.ReduceOp.MIN)
    timed(int(rows))
    times: dict[bool, list[float]] = {False: [], True: []}
    cores: dict[bool, list[float]] = {False: [], True: []}
    windows = 0
    for number in range(2 * rounds):
        on = bool(number % 2)
        with weft.torch.monitor(log=lambda _: None) if on else nullcontext() as monitor:
            dist.barrier()
            used = _cpu()
            for _ in range(_BLOCK):
                begin = time.perf_counter()
                step()
                times[on].append(time.perf_counter() - begin)
            cores[on].append((_cpu() - used) / _BLOCK)
        windows += len(monitor.windows) if monitor is not None else 0
    if dist.get_rank() == 0:
        print(
            json.dumps(
                {
                    "off": [median(times[False]), median(cores[False])],
                    "on": [median(times[True]), median(cores[True])],
                    "windows": windows,
                    "blocks": [cores[False], cores[True]],
                }
            ),
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
