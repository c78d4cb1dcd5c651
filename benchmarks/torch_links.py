"""Fused operators of ranks on two hosts, and their halves alone: computing, exchanging."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.lookups import Lookups
from benchmarks.torch_alone import Pooled
from benchmarks.torch_lookups import Fused
from benchmarks.torch_slowest import slowest, took
from weft.torch import AllGatherLinear, LinearReduceScatter
from weft.torch.backend.c10d import all_gather_single, reduce_scatter_single

Act = Callable[[], Any]


class Halves(NamedTuple):
    """The operator, each of its halves alone, and whether both ways give the same."""

    compute: Act
    communicate: Act
    fused: Act
    same: bool


def fused(groups: dict[str, Any], job: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure the cases of one operator, all in turn in every round."""
    del groups  # weft is the default one
    make = {
        "embedding_all_to_all": _lookups,
        "linear_reduce_scatter": _reduce_scatter,
        "all_gather_linear": _all_gather,
    }[job["operator"]]
    found = []
    for asked in job["asked"]:
        halves = make(asked)
        for act in halves[:3]:
            act()
        times = [_once(halves) for _ in range(job["rounds"])]
        found.append({"case": asked, "times": times, "same": halves.same})
    return found


def _once(halves: Halves) -> dict[str, float]:
    compute, communicate = slowest(halves.compute), took(halves.communicate)
    return {
        "compute": compute,
        "communicate": communicate.wall,
        "core": communicate.core,
        "fused": slowest(halves.fused),
    }


def _lookups(asked: dict[str, Any]) -> Halves:
    """Pool into blocks by taker, exchange blocks; or both at once into rows."""
    lookups, rank, size = Lookups(**asked), dist.get_rank(), dist.get_world_size()
    whole = Fused(lookups, rank, size)
    alone = Pooled(lookups, whole.tables, size)
    out = torch.empty_like(alone.blocks)
    bags = whole.turns[0]
    alone.pool(bags)
    dist.all_to_all_single(out, alone.blocks)
    rows = out.permute(1, 0, 2).flatten(1)
    same = torch.equal(rows, whole.rows(bags))
    return Halves(
        lambda: alone.pool(whole.next_bags()),
        lambda: dist.all_to_all_single(out, alone.blocks),
        whole.act,
        same,
    )


def _small(*shape: int) -> Tensor:
    """Return whole numbers: their products add up exactly."""
    return (torch.arange(shape[0])[:, None] * 7 + torch.arange(shape[1]) * 3).remainder(5.0) - 2


def _reduce_scatter(asked: dict[str, Any]) -> Halves:
    rows, depth, width = asked["rows"], asked["depth"], asked["width"]
    size = dist.get_world_size()
    x, layer = _small(rows, depth), _layer(depth * size, width)
    fused = LinearReduceScatter.of(layer, fuse=True)
    weight, out = fused.weight.detach(), torch.empty(rows // size, width)
    made = nn.functional.linear(x, weight)
    reduce_scatter_single(out, made)
    same = torch.equal(out, fused(x))
    compute = partial(nn.functional.linear, x, weight)
    return Halves(compute, partial(reduce_scatter_single, out, made), _without_grad(fused, x), same)


def _all_gather(asked: dict[str, Any]) -> Halves:
    rows, depth, width = asked["rows"], asked["depth"], asked["width"]
    size = dist.get_world_size()
    x, layer = _small(rows // size, depth) + dist.get_rank(), _layer(depth, width * size)
    fused = AllGatherLinear.of(layer, fuse=True)
    weight, came = fused.weight.detach(), torch.empty(rows, depth)
    all_gather_single(came, x)
    compute = partial(nn.functional.linear, came, weight)
    same = torch.equal(compute(), fused(x))
    return Halves(compute, partial(all_gather_single, came, x), _without_grad(fused, x), same)


def _layer(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    with torch.no_grad():
        layer.weight.copy_(_small(outputs, inputs))
    return layer


def _without_grad(layer: nn.Module, x: Tensor) -> Act:
    def act() -> None:
        with torch.no_grad():
            layer(x)

    return act
