"""A trainer updates its weights and sends them to workers: only what changed travels.

    torchrun --nproc-per-node=3 examples/weight_update.py --pretend-hosts

Rank 0 trains a model of which a step touches a few rows, as an embedding is, and broadcasts all
its weights after every step; the others, which would serve the model, check that they hold the
same bytes. Between hosts ``delta+pack`` sends the bits that differ from the last time, without
loss. On one machine ranks share memory, where nothing is encoded: ``--pretend-hosts`` tells them
apart as if each had a machine of its own.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

import weft.torch

ROWS, WIDTH, TOUCHED, STEPS = 20_000, 64, 500, 6


def main() -> None:
    """Train on rank 0, follow on the others."""
    if "--pretend-hosts" in sys.argv:
        os.environ |= {"WEFT_HOST": f"host-{os.environ['RANK']}", "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("weft")
    weft.torch.compress(broadcast="delta+pack")
    torch.manual_seed(0)
    table = torch.nn.Embedding(ROWS, WIDTH)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for step in range(STEPS):
        if dist.get_rank() == 0 and step:
            rows = torch.randint(ROWS, (TOUCHED,))
            optimizer.zero_grad()
            table(rows).square().mean().mul(ROWS).backward()
            optimizer.step()
        seconds = share(table)
        if dist.get_rank() == 0:
            print(f"step {step}: {4 * ROWS * WIDTH} bytes of weights in {1e3 * seconds:.1f} ms")
    dist.destroy_process_group()


def share(model: torch.nn.Module) -> float:
    """Give every rank the trainer's weights; all must hold the same bytes then."""
    begin = time.perf_counter()
    for weights in model.parameters():
        dist.broadcast(weights.detach(), 0)
    seconds = time.perf_counter() - begin
    sums = [weights.detach().view(torch.int32).sum() for weights in model.parameters()]
    total = torch.stack(sums).sum()
    everyone = [torch.zeros_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, total)
    assert len({int(each) for each in everyone}) == 1, "ranks hold different weights"
    return seconds


if __name__ == "__main__":
    main()
