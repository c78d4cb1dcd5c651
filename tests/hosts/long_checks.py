"""Tensors of many chunks, and what belongs to several hosts alone: each check asserts by value."""

from typing import Any

import torch
import torch.distributed as dist

import weft.torch
from tests.torch.backend_checks import everyone, total
from tests.torch.collective_cases import values
from weft.torch.hosts.multi_host_channel import MultiHostChannel

COUNT = 700_001  # elements: 2.8 MB, some chunks of 256 KiB and a rest


def long_tensors_are_reduced() -> None:
    want = total(everyone(COUNT))
    x = values(COUNT)
    dist.all_reduce(x)
    assert torch.equal(x, want)
    root = dist.get_world_size() - 1
    x = values(COUNT)
    dist.reduce(x, root)
    assert torch.equal(x, want if dist.get_rank() == root else values(COUNT))
    x = values(COUNT)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert torch.allclose(x, want / dist.get_world_size())


def long_tensors_are_reduced_and_scattered() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    x, out = values(COUNT * size), torch.empty(COUNT)
    dist.reduce_scatter_tensor(out, x)
    want = total(everyone(COUNT * size)).chunk(size)[rank]
    assert torch.equal(out, want)
    assert torch.equal(x, values(COUNT * size))


def long_tensors_are_gathered() -> None:
    want = everyone(COUNT)
    out = torch.empty(COUNT * len(want))
    dist.all_gather_into_tensor(out, values(COUNT))
    assert torch.equal(out, torch.cat(want))
    outs = [torch.empty(COUNT) for _ in want]
    dist.all_gather(outs, values(COUNT))
    assert all(map(torch.equal, outs, want))


def long_tensors_are_broadcast_from_every_rank() -> None:
    for root in range(dist.get_world_size()):
        x = values(COUNT)
        dist.broadcast(x, root)
        assert torch.equal(x, values(COUNT, rank=root))


def long_tensors_go_all_to_all() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    out = torch.empty(COUNT * size)
    dist.all_to_all_single(out, values(COUNT * size))
    parts = [x.chunk(size)[rank] for x in everyone(COUNT * size)]
    assert torch.equal(out, torch.cat(parts))


def long_tensors_are_gathered_and_scattered_by_every_root() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for root in range(size):
        outs = [torch.empty(COUNT) for _ in range(size)] if rank == root else None
        dist.gather(values(COUNT), outs, root)
        assert outs is None or all(map(torch.equal, outs, everyone(COUNT)))
        out = torch.empty(COUNT)
        dist.scatter(out, everyone(COUNT) if rank == root else None, root)
        assert torch.equal(out, values(COUNT))


def results_are_the_same_bits_everywhere_and_again() -> None:
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(COUNT, generator=generator)
    first, second = x.clone(), x.clone()
    dist.all_reduce(first)
    dist.all_reduce(second)
    assert torch.equal(first, second)
    root = first.clone()
    dist.broadcast(root, 0)
    assert torch.equal(first, root)


def many_messages_cross_each_other() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    requests: list[Any] = []
    rooms = {}
    for tag in range(40):
        for other in set(range(size)) - {rank}:
            count = 1 + tag * 400
            rooms[tag, other] = torch.empty(count)
            requests.append(dist.isend(torch.full((count,), 100.0 * rank + tag), other, tag=tag))
            requests.append(dist.irecv(rooms[tag, other], other, tag=tag))
    for request in requests:
        request.wait()
    assert all((room == 100.0 * other + tag).all() for (tag, other), room in rooms.items())
    dist.barrier()


def eight_bit_floats_and_booleans_are_joined() -> None:
    x = values(100, dtype="float8_e5m2")
    dist.all_reduce(x, dist.ReduceOp.MAX)
    want = torch.stack([each.float() for each in everyone(100, dtype="float8_e5m2")]).amax(0)
    assert torch.equal(x.float(), want)
    truth = values(100, dtype="bool")
    dist.all_reduce(truth)
    assert torch.equal(truth, torch.stack(everyone(100, dtype="bool")).any(0))


def the_paths_are_reported() -> None:
    told = weft.torch.paths()
    assert told["between hosts"] == "gloo"
    assert told["heap"] == "shared memory"
    assert "leaders" in told["all_reduce"]
    assert "rank to rank" in told["all_to_all"]
    world: Any = dist.group.WORLD
    assert isinstance(world.channel, MultiHostChannel)


LONG = {
    function.__name__: function
    for function in (
        long_tensors_are_reduced,
        long_tensors_are_reduced_and_scattered,
        long_tensors_are_gathered,
        long_tensors_are_broadcast_from_every_rank,
        long_tensors_go_all_to_all,
        long_tensors_are_gathered_and_scattered_by_every_root,
        results_are_the_same_bits_everywhere_and_again,
        many_messages_cross_each_other,
        eight_bit_floats_and_booleans_are_joined,
        the_paths_are_reported,
    )
}
