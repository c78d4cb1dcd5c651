"""Training steps on the tensors of a device, as functions of its name: their losses."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        grown: Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + grown


def blocks(device: str, count: int = 2) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(*(Block() for _ in range(count))).to(device)


def losses(net: Callable[[Tensor], Any], parameters: Any, device: str, seed: int) -> list[float]:
    """Return the losses of a few steps on batches that the seed decides."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, foreach=False)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(STEPS):
        x = torch.randn(4, 8, WIDTH, generator=generator).to(device)
        loss: Any = (net(x) - 2 * x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append((loss.full_tensor() if isinstance(loss, DTensor) else loss).item())
    return found


def ddp(device: str) -> list[float]:
    net = DistributedDataParallel(blocks(device), bucket_cap_mb=0.005)
    return losses(net, net.parameters(), device, 100 + dist.get_rank())


def fsdp1(device: str) -> list[float]:
    of_device = None if device == "cpu" else torch.device(device, 0)
    net = FullyShardedDataParallel(blocks(device), device_id=of_device, use_orig_params=True)
    return losses(net, net.parameters(), device, 100 + dist.get_rank())


def fsdp2(device: str) -> list[float]:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    net = blocks(device)
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return losses(net, net.parameters(), device, 100 + dist.get_rank())


def tensor_parallel(device: str) -> list[float]:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    net = blocks(device)
    for block in net:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return losses(net, net.parameters(), device, 100)


def sequence_parallel(device: str) -> list[float]:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    net = blocks(device)
    plan: Any = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    for block in net:
        parallelize_module(block, mesh, plan)
    whole = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1))
    parallelize_module(net, mesh, whole)
    return losses(
        lambda x: (
            net(distribute_tensor(x, mesh, [Replicate()]))
            .redistribute(mesh, [Replicate()])
            .to_local()
        ),
        net.parameters(),
        device,
        100,
    )


def fsdp2_and_tensor_parallel(device: str) -> list[float]:
    """Run on a mesh of 2 x 2 ranks."""
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("data", "tensor"))
    net = blocks(device)
    for block in net:
        parallelize_module(
            block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
        )
        fully_shard(block, mesh=mesh["data"])
    fully_shard(net, mesh=mesh["data"])
    return losses(net, net.parameters(), device, 100 + mesh["data"].get_local_rank())


def hybrid_shard(device: str) -> list[float]:
    """Run on a mesh of 2 x 2 ranks."""
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("replicate", "shard"))
    net = blocks(device)
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return losses(net, net.parameters(), device, 100 + dist.get_rank())


class Experts(nn.Module):
    """One expert per rank: tokens are sent to the expert that the router chose, and back."""

    def __init__(self, device: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.router = nn.Linear(WIDTH, dist.get_world_size()).to(device)
        torch.manual_seed(50 + dist.get_rank())
        self.expert = nn.Linear(WIDTH, WIDTH).to(device)

    def forward(self, x: Tensor) -> Tensor:
        size = dist.get_world_size()
        world: Any = dist.group.WORLD
        tokens = x.flatten(0, 1)
        weight, chosen = self.router(tokens).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=size)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        to, of = counts.tolist(), theirs.tolist()
        sent = functional.all_to_all_single_autograd(tokens[order], of, to, world)
        back = functional.all_to_all_single_autograd(self.expert(sent), to, of, world)
        joined = torch.empty_like(tokens).index_copy(0, order, back)
        weighted: Tensor = joined * weight.unsqueeze(-1)
        return weighted.view_as(x)


def experts(device: str) -> list[float]:
    net = Experts(device)
    return losses(net, net.parameters(), device, 100 + dist.get_rank())


def pipeline(device: str) -> list[list[float]]:
    """Run one stage per rank, as GPipe and as 1F1B."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for kind in (ScheduleGPipe, Schedule1F1B):
        part = blocks(device, size)[rank]
        stage = PipelineStage(part, rank, size, torch.device(device))
        schedule: Any = kind(stage, 4, loss_fn=nn.functional.mse_loss)
        optimizer = torch.optim.SGD(part.parameters(), lr=0.1, foreach=False)
        generator = torch.Generator().manual_seed(9)
        last: list[float] = []
        for _ in range(STEPS):
            x = torch.randn(8, WIDTH, generator=generator).to(device)
            each: list[Tensor] = []
            if rank == 0:
                schedule.step(x)
            else:
                schedule.step(target=2 * x, losses=each)
            optimizer.step()
            optimizer.zero_grad()
            last += [loss.item() for loss in each]
        found.append([*last, float(sum(p.sum() for p in part.parameters()))])
    return found


ON_TWO = (ddp, fsdp1, fsdp2, tensor_parallel, sequence_parallel, experts, pipeline)
ON_FOUR = (fsdp2_and_tensor_parallel, hybrid_shard)


def train_all(device: str) -> dict[str, Any]:
    """Return the losses of each training, or how it failed."""
    found: dict[str, Any] = {}
    for train in ON_TWO if dist.get_world_size() == 2 else ON_FOUR:
        try:
            found[train.__name__] = train(device)
        except Exception as error:  # noqa: BLE001 - it is the result
            found[train.__name__] = f"{type(error).__name__}: {error}"
    return found
