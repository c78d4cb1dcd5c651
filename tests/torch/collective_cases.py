"""Collectives of torch.distributed as functions of a group: weft's and Gloo's must agree."""

import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Case = Callable[[Any], list[Tensor]]
CASES: dict[str, Case] = {}
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
MOVED = (*DTYPES, "bool", "complex64")  # what Gloo moves
SHAPES = ((1,), (0,), (5, 3), (1000,), (2, 0, 3), (70001,))
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def values(*shape: int, dtype: str = "float32", rank: int | None = None) -> Tensor:
    """Small whole numbers, other ones on every rank: sums of them are exact."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(rank + 17)
    whole = torch.randint(0, 4, shape, generator=generator)
    return whole.to(getattr(torch, dtype))


def case(name: str) -> Callable[[Case], Case]:
    def note(function: Case) -> Case:
        CASES[name] = function
        return function

    return note


def of_dtype(dtype: str) -> None:
    @case(f"broadcast {dtype}")
    def broadcast(group):
        x = values(33, dtype=dtype)
        dist.broadcast(x, 1, group=group)
        return [x]

    @case(f"all_gather {dtype}")
    def all_gather(group):
        outs = [torch.empty_like(values(33, dtype=dtype)) for _ in range(dist.get_world_size())]
        dist.all_gather(outs, values(33, dtype=dtype), group=group)
        return outs


def of_shape(shape: tuple[int, ...]) -> None:
    @case(f"all_gather {shape}")
    def all_gather(group):
        outs = [torch.zeros(shape) for _ in range(dist.get_world_size())]
        dist.all_gather(outs, values(*shape), group=group)
        return outs

    @case(f"all_gather_into_tensor {shape}")
    def into_tensor(group):
        out = torch.zeros(dist.get_world_size() * shape[0], *shape[1:])
        dist.all_gather_into_tensor(out, values(*shape), group=group)
        return [out]

    @case(f"all_reduce {shape}")
    def all_reduce(group):
        x = values(*shape)
        dist.all_reduce(x, group=group)
        return [x]

    @case(f"reduce_scatter_tensor {shape}")
    def reduce_scatter(group):
        out = torch.zeros(shape)
        x = values(dist.get_world_size() * shape[0], *shape[1:])
        dist.reduce_scatter_tensor(out, x, group=group)
        return [out]

    @case(f"all_to_all_single {shape}")
    def all_to_all(group):
        x = values(dist.get_world_size() * shape[0], *shape[1:])
        out = torch.zeros_like(x)
        dist.all_to_all_single(out, x, group=group)
        return [out]

    @case(f"gather {shape}")
    def gather(group):
        here = dist.get_rank() == 1
        outs = [torch.zeros(shape) for _ in range(dist.get_world_size())] if here else None
        dist.gather(values(*shape), outs, dst=1, group=group)
        return outs or []

    @case(f"scatter {shape}")
    def scatter(group):
        ins = [values(*shape) + i for i in range(dist.get_world_size())]
        out = torch.zeros(shape)
        dist.scatter(out, ins if dist.get_rank() == 1 else None, src=1, group=group)
        return [out]


def of_op(op: str, dtype: str) -> None:
    @case(f"all_reduce {op} {dtype}")
    def all_reduce(group):
        x = values(77, dtype=dtype)
        dist.all_reduce(x, getattr(dist.ReduceOp, op), group=group)
        return [x]


for each_dtype in MOVED:
    of_dtype(each_dtype)
for each_shape in SHAPES:
    of_shape(each_shape)
for each_op in OPS:
    for each_dtype in DTYPES if each_op in OPS[:4] else ("int8", "int64"):
        of_op(each_op, each_dtype)


@case("reduce")
def reduce(group):
    x = values(50)
    dist.reduce(x, dst=1, group=group)
    return [x] if dist.get_rank() == 1 else []


@case("reduce_scatter of a list")
def reduce_scatter_list(group):
    out = torch.zeros(9)
    dist.reduce_scatter(out, [values(9) + i for i in range(dist.get_world_size())], group=group)
    return [out]


@case("strided tensors")
def strided(group):
    x = values(6, 4).t()
    dist.all_reduce(x, group=group)
    y = values(6, 4).t()
    dist.broadcast(y, 0, group=group)
    outs = [torch.zeros(6, 4).t() for _ in range(dist.get_world_size())]
    dist.all_gather(outs, values(6, 4).t(), group=group)
    return [x, y, *outs]


@case("uneven all_to_all_single")
def uneven(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    given = [(rank + 2 * other) % 4 for other in range(size)]
    taken = [(other + 2 * rank) % 4 for other in range(size)]
    out = torch.zeros(sum(taken), 3)
    dist.all_to_all_single(out, values(sum(given), 3), taken, given, group=group)
    return [out]


@case("asynchronous, several at once")
def asynchronous(group):
    tensors = [values(1000 * (i + 1)) for i in range(8)]
    works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() for work in works)
    return tensors


@case("messages")
def messages(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    out = [torch.zeros(7), torch.zeros(3, 5)]
    ops = [
        dist.P2POp(dist.isend, values(7), (rank + 1) % size, group),
        dist.P2POp(dist.isend, values(3, 5), (rank + 1) % size, group, 2),
        dist.P2POp(dist.irecv, out[1], (rank - 1) % size, group, 2),
        dist.P2POp(dist.irecv, out[0], (rank - 1) % size, group),
    ]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return out


@case("objects")
def objects(group):
    size = dist.get_world_size()
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, {"rank": dist.get_rank()}, group=group)
    told: list[Any] = [{"root": 5}] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(told, 0, group=group)
    return [torch.tensor([one["rank"] for one in everyone]), torch.tensor(told[0]["root"])]


def compare_all(names: list[str]) -> dict[str, str]:
    """Run each case with both groups; return what went wrong, by name."""
    gloo = dist.new_group(backend="gloo")
    return {name: _compare(CASES[name], gloo) for name in names}


def _compare(function: Case, gloo: Any) -> str:
    try:
        mine, theirs = function(None), function(gloo)
        for left, right in zip(mine, theirs, strict=True):
            assert left.dtype == right.dtype
            assert torch.equal(left.to(torch.complex128), right.to(torch.complex128)), (left, right)
    except Exception:  # noqa: BLE001 - told by the test of that name
        return traceback.format_exc()
    return ""
