"""Calls of torch.distributed on the tensors of a device, as functions of its name.

Every function returns plain values, which must be those of Gloo on the CPU.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed import distributed_c10d

from weft.torch.backend.c10d import all_gather_single, reduce_scatter_single

Call = Callable[[str], Any]
CALLS: dict[str, Call] = {}


def call(function: Call) -> Call:
    CALLS[function.__name__] = function
    return function


def numbers(device: str, count: int = 4) -> Tensor:
    """Return other numbers on each rank."""
    return (torch.arange(count, dtype=torch.float32) + 10 * dist.get_rank()).to(device)


def zeros(device: str, count: int = 4) -> Tensor:
    return torch.zeros(count, device=device)


def lists(*tensors: Tensor) -> list[list[float]]:
    return [x.cpu().tolist() for x in tensors]


def peer() -> int:
    return 1 - dist.get_rank()


@call
def all_reduce(device):
    x, y, z = (numbers(device) for _ in range(3))
    dist.all_reduce(x)
    work = dist.all_reduce(y, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    dist.all_reduce(z, op=dist.ReduceOp.AVG)
    return lists(x, y, z)


@call
def broadcast(device):
    x = numbers(device)
    dist.broadcast(x, 1)
    return lists(x)


@call
def reduce(device):
    x = numbers(device)
    dist.reduce(x, 1)
    return lists(x) if dist.get_rank() == 1 else []


@call
def all_gather(device):
    out = [zeros(device), zeros(device)]
    dist.all_gather(out, numbers(device))
    return lists(*out)


@call
def all_gather_into_tensor(device):
    out = zeros(device, 8)
    all_gather_single(out, numbers(device))
    return lists(out)


@call
def reduce_scatter(device):
    out = zeros(device)
    dist.reduce_scatter(out, [numbers(device), numbers(device) + 1])
    return lists(out)


@call
def reduce_scatter_tensor(device):
    out = zeros(device)
    reduce_scatter_single(out, numbers(device, 8))
    return lists(out)


@call
def all_to_all_single(device):
    out, uneven = zeros(device), zeros(device, 2 + 2 * dist.get_rank())
    dist.all_to_all_single(out, numbers(device))
    dist.all_to_all_single(uneven, numbers(device, 3), [1 + dist.get_rank()] * 2, [1, 2])
    return lists(out, uneven)


@call
def gather(device):
    out = [zeros(device), zeros(device)] if dist.get_rank() == 0 else None
    dist.gather(numbers(device), out)
    return lists(*(out or []))


@call
def scatter(device):
    out = zeros(device)
    dist.scatter(out, [numbers(device), numbers(device) + 1] if dist.get_rank() == 0 else None)
    return lists(out)


@call
def send_recv(device):
    out = zeros(device)
    if dist.get_rank() == 0:
        dist.send(numbers(device), 1)
        dist.recv(out, 1)
    else:
        dist.recv(out, 0)
        dist.send(numbers(device), 0)
    return lists(out)


@call
def isend_irecv(device):
    out = zeros(device)
    works: Any = [dist.irecv(out, peer(), tag=3), dist.isend(numbers(device), peer(), tag=3)]
    for work in works:
        work.wait()
    return lists(out)


@call
def recv_from_any(device):
    out = zeros(device)
    work: Any = dist.isend(numbers(device), peer())
    sender = dist.recv(out)
    work.wait()
    return [lists(out), sender]


@call
def batch_isend_irecv(device):
    out, other = zeros(device), zeros(device)
    ops = [
        dist.P2POp(dist.isend, numbers(device), peer()),
        dist.P2POp(dist.irecv, out, peer()),
        dist.P2POp(dist.isend, numbers(device) + 1, peer()),
        dist.P2POp(dist.irecv, other, peer()),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return lists(out, other)


@call
def coalesced(device):
    """Calls that torch collects and makes as one; functions of one kind each."""
    x, y = numbers(device), numbers(device) * 2
    with distributed_c10d._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    gathered = [zeros(device, 8), zeros(device, 8)]
    with distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for out in gathered:
            all_gather_single(out, numbers(device))
    manager.wait()
    scattered = [zeros(device), zeros(device)]
    with distributed_c10d._coalescing_manager():
        for out in scattered:
            reduce_scatter_single(out, numbers(device, 8))
    return lists(x, y, *gathered, *scattered)


@call
def functional_collectives(device):
    """The ops that DTensor and torch.compile use."""
    world: Any = dist.group.WORLD
    x = numbers(device)
    return lists(
        functional.all_reduce(x, "sum", world),
        functional.all_gather_tensor(x, 0, world),
        functional.reduce_scatter_tensor(numbers(device, 8), "sum", 0, world),
        functional.all_to_all_single(x, [2, 2], [2, 2], world),
        functional.broadcast(x, 1, world),
        *functional.all_reduce_coalesced([x, x + 1], "sum", world),
        *functional.all_gather_into_tensor_coalesced([x, x + 1], world),
        *functional.reduce_scatter_tensor_coalesced([numbers(device, 8)], "sum", [0], world),
    )


@call
def gradients_of_functional_collectives(device):
    world: Any = dist.group.WORLD
    x = numbers(device).requires_grad_()
    y = functional.all_to_all_single_autograd(x, [2, 2], [2, 2], world)
    y = functional.all_gather_tensor_autograd(y * numbers(device), 0, world)
    (functional.reduce_scatter_tensor_autograd(y * y, "sum", 0, world)).sum().backward()
    assert x.grad is not None
    return lists(x.grad)


@call
def objects(device):
    del device  # they travel as tensors of the CPU
    rank = dist.get_rank()
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, {"rank": rank})
    at_root: list[Any] | None = [None, None] if rank == 0 else None
    dist.gather_object(f"of {rank}", at_root)
    shared: list[Any] = [rank, rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared)
    part: list[Any] = [None]
    dist.scatter_object_list(part, ["a", "b"] if rank == 0 else None)
    if rank == 0:
        dist.send_object_list(["x"], 1)
        received: list[Any] = []
    else:
        received = [None]
        dist.recv_object_list(received, 0)
    return [gathered, at_root, shared, part, received]


@call
def objects_by_the_device(device):
    """Objects that the caller wants to travel through the memory of the device."""
    shared: list[Any] = [{"a": 1}] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(shared, device=torch.device(device))
    return shared


@call
def barriers(device):
    dist.barrier()
    work = dist.barrier(async_op=True)
    if work is not None:
        work.wait()
    dist.barrier(device_ids=None if device == "cpu" else [0])
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    return []


@call
def groups(device):
    """New groups have the names and descriptions they are given, and the same devices."""
    found: list[Any] = []
    both = dist.new_group([0, 1], group_desc="both", timeout=timedelta(seconds=40))
    alone, _ = dist.new_subgroups(1)
    for group in (both, alone):
        x = numbers(device)
        dist.all_reduce(x, group=group)
        out = zeros(device, 4 * dist.get_world_size(group))
        all_gather_single(out, x, group=group)
        found += [*lists(x, out), dist.get_world_size(group), dist.get_process_group_ranks(group)]
    found += [
        both.group_desc,
        torch._C._distributed_c10d._resolve_process_group(both.group_name) is both,
    ]
    dist.destroy_process_group(both)
    x = numbers(device)
    dist.all_reduce(x)
    return [*found, *lists(x)]


@call
def scalars_and_empty_tensors(device):
    one, none, half = torch.ones((), device=device), zeros(device, 0), numbers(device).bfloat16()
    for x in (one, none, half):
        dist.all_reduce(x)
    return [one.item(), none.tolist(), half.float().tolist()]


@call
def strided_tensors(device):
    x = numbers(device, 12).view(3, 4).t()
    part = numbers(device, 12).view(3, 4)[:, 1:3].contiguous()
    dist.all_reduce(x)
    dist.all_reduce(part)
    return lists(x, part)


def make_all(device: str) -> dict[str, Any]:
    """Return the result of each call, or how it failed."""
    found: dict[str, Any] = {}
    for name, function in CALLS.items():
        try:
            found[name] = function(device)
        except Exception as error:  # noqa: BLE001 - it is the result
            found[name] = f"{type(error).__name__}: {error}"
    return found


def split(device: str) -> list[Any]:
    """Split a group in two, and into parts of which one rank has none; on a device with splits."""
    world: Any = dist.group.WORLD
    dist.all_reduce(numbers(device))  # the group of the device exists
    world.bound_device_id = torch.device(device, 0)  # torch.distributed splits groups with one only
    gloo: Any = dist.ProcessGroupGloo  # it splits the groups of the device
    options = gloo._Options()
    options._devices = [gloo.create_default_device()]
    part: Any = dist.split_group(split_ranks=[[1], [0]], group_desc="halves", pg_options=options)
    x, on_cpu = numbers(device), numbers("cpu")
    dist.all_reduce(x, group=part)
    dist.all_reduce(on_cpu, group=part)
    backend = type(part._get_backend(torch.device(device))).__name__
    found = [*lists(x, on_cpu), part.size(), part.group_desc, backend]
    first: Any = world.split_group([0], opts=options)
    both: Any = world.split_group([1, 0], opts=options)
    y = numbers(device)
    dist.all_reduce(y, group=both)
    return [*found, first is None, both.rank(), *lists(y)]


def noted(device: str) -> list[str]:
    """Return what the backend of the device was asked for in a batch of messages."""
    extension = torch.get_device_module(device).extension
    dist.all_reduce(numbers(device))
    extension.take_notes()
    batch_isend_irecv(device)
    names: list[str] = extension.take_notes()
    return names


def from_cpp(device: str) -> list[Any]:
    """Make calls that torch's C++ base class serves: they reach the backend that is registered."""
    world: Any = dist.group.WORLD
    dist.all_reduce(numbers(device))
    named = [each.type for each in world._device_types]
    backend: Any = distributed_c10d.ProcessGroup._get_backend(world, torch.device(device))
    out = zeros(device)
    backend.alltoall([out[:2], out[2:]], [*numbers(device).chunk(2)]).wait()
    return [named, backend is world._get_backend(torch.device(device)), *lists(out)]
