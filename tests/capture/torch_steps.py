"""Steps as users write them, small."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def mlp(layers=3, width=64):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def training(model, width=64):
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, width, device="cuda")

    def step():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def alone(width=64):
    return training(mlp(width=width).cuda(), width)


def sparse():
    """Lookups whose gradient has the rows that were looked up."""
    bag = nn.EmbeddingBag(100_000, 16, mode="sum", include_last_offset=True, sparse=True)
    optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
    indices, offsets = torch.arange(32), torch.arange(0, 33, 4)

    def step():
        bag(indices, offsets).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp():
    return training(nn.parallel.DistributedDataParallel(mlp(4, 1024).cuda()), 1024)


def fsdp():
    model = mlp()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return training(model)


def tensor_parallel():
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    split = parallelize_module(model, mesh["tp"], plan)
    x = torch.randn(8, 64)
    return lambda: split(x).sum().backward()


def pipeline():
    """Two stages that hand activations over and gradients back."""
    rank = dist.get_rank()
    model, x = mlp(), torch.randn(8, 64, requires_grad=True)

    def step():
        if rank == 0:
            y = model(x)
            dist.send(y, 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, 1)
            y.backward(gradient)
        else:
            got = torch.empty(8, 64)
            dist.recv(got, 0)
            got.requires_grad_()
            model(got).sum().backward()
            assert got.grad is not None
            dist.send(got.grad, 0)

    return step


def reads_its_loss():
    step = alone()
    x = torch.randn(8)

    def reading():
        step()
        return x.sum().item()

    return reading


def depends_on_data():
    x = torch.randn(100)

    def step():
        return x[x > 0].sum()

    return step


def uses_what_nobody_knows():
    x = torch.randn(16, 16)
    return lambda: torch.linalg.svd(x)


def normalised():
    model = nn.RMSNorm(64)
    x = torch.randn(8, 64, requires_grad=True)
    return lambda: model(x).sum().backward()


def fails():
    raise RuntimeError("no data here")


def does_nothing():
    return None


def uneven():
    """Rank 0 does twice the work before all meet."""
    model, x = mlp(4 if dist.get_rank() == 0 else 2, 512), torch.randn(4096, 512)

    def step():
        dist.all_reduce(model(x))

    return step


def uneven_pairs():
    """Rank 3 does twice the work before neighbours meet in pairs."""
    model, x = mlp(4 if dist.get_rank() == 3 else 2, 512), torch.randn(4096, 512)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]

    def step():
        dist.all_reduce(model(x), group=pairs[dist.get_rank() // 2])

    return step


def attending(*, causal):
    """Attention by a kernel that is asked for the sums of its rows, as training does."""
    query = torch.empty(1, 4, 64, 32)
    attention = torch.ops.aten._scaled_dot_product_efficient_attention
    attention(query, query, query, None, True, 0.0, causal)
