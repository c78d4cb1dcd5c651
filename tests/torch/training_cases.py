"""Small trainings as functions of a group: what they lose, step by step."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import weft.torch

STEPS = 6


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 1)
    )


def losses(net: nn.Module, optimizer: Any) -> list[float]:
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    found = []
    for _ in range(STEPS):
        x = torch.randn(16, 20, generator=generator)
        loss: Tensor = (net(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def ddp(group: Any) -> list[float]:
    net = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.005)
    return losses(net, torch.optim.AdamW(net.parameters(), lr=1e-2))


def zero(group: Any) -> list[float]:
    net = DistributedDataParallel(model(), process_group=group)
    return losses(
        net,
        ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, process_group=group, lr=1e-2),
    )


def fsdp(group: Any) -> list[float]:
    net = sharded(group)
    return losses(net, torch.optim.AdamW(net.parameters(), lr=1e-2))


def sharded(group: Any) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    net = model()
    for layer in net.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def fsdp_in_the_heap() -> tuple[list[float], list[float], list[tuple[int, int, int]], int]:
    """What FSDP2 loses without and with the heap, how often and how much of that was used."""
    plain = fsdp(dist.group.WORLD)
    net = sharded(dist.group.WORLD)
    used = weft.torch.use_heap(net)
    found = losses(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    counts = [(each.num_calls, each.num_given, each.num_refused) for each in used]
    return plain, found, counts, weft.torch.world_of().private_arena.num_allocations


TRAININGS = {"DDP": ddp, "ZeRO": zero, "FSDP2": fsdp}


def train_all() -> dict[str, tuple[list[float], list[float]]]:
    """Train with weft, then with Gloo."""
    gloo = dist.new_group(backend="gloo")
    return {name: (train(dist.group.WORLD), train(gloo)) for name, train in TRAININGS.items()}
