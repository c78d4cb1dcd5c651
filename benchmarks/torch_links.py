"""Fused operators of ranks on two hosts, and their computation and communication alone."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.lookups import Lookups
from benchmarks.torch_lookups import Fused
from benchmarks.torch_pooling import PooledBlocks
from benchmarks.torch_rank_timing import slowest, time_on_ranks
from weft.torch import AllGatherLinear, LinearReduceScatter
from weft.torch.backend.c10d import all_gather_single, reduce_scatter_single

Act = Callable[[], Any]


class OperatorParts(NamedTuple):
    """The fused operator, its computation and communication alone, and whether results agree."""

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
        parts = make(asked)
        for act in parts[:3]:
            act()
        times = [_once(parts) for _ in range(job["rounds"])]
        found.append({"case": asked, "times": times, "same": parts.same})
    return found


def _once(parts: OperatorParts) -> dict[str, float]:
    compute, communicate = slowest(parts.compute), time_on_ranks(parts.communicate)
    return {
        "compute": compute,
        "communicate": communicate.wall,
        "core": communicate.core,
        "fused": slowest(parts.fused),
    }


def _lookups(asked: dict[str, Any]) -> OperatorParts:
    """Pool into blocks by taker, exchange blocks; or both at once into rows."""
    lookups, rank, size = Lookups(**asked), dist.get_rank(), dist.get_world_size()
    whole = Fused(lookups, rank, size)
    alone = PooledBlocks(lookups, whole.tables, size)
    out = torch.empty_like(alone.blocks)
    bags = whole.turns[0]
    alone.pool(bags)
    dist.all_to_all_single(out, alone.blocks)
    rows = out.permute(1, 0, 2).flatten(1)
    same = torch.equal(rows, whole.rows(bags))
    return OperatorParts(
        lambda: alone.pool(whole.next_bags()),
        lambda: dist.all_to_all_single(out, alone.blocks),
        whole.act,
        same,
    )


def _small(*shape: int) -> Tensor:
    """Return whole numbers: their products add up exactly."""
    return (torch.arange(shape[0])[:, None] * 7 + torch.arange(shape[1]) * 3).remainder(5.0) - 2


def _reduce_scatter(asked: dict[str, Any]) -> OperatorParts:
    rows, depth, width = asked["rows"], asked["depth"], asked["width"]
    size = dist.get_world_size()
    x, layer = _small(rows, depth), _layer(depth * size, width)
    fused = LinearReduceScatter.of(layer, fuse=True)
    weight, out = fused.weight.detach(), torch.empty(rows // size, width)
    made = nn.functional.linear(x, weight)
    reduce_scatter_single(out, made)
    same = torch.equal(out, fused(x))
    compute = partial(nn.functional.linear, x, weight)
    return OperatorParts(
        compute, partial(reduce_scatter_single, out, made), _without_grad(fused, x), same
    )


def _all_gather(asked: dict[str, Any]) -> OperatorParts:
    rows, depth, width = asked["rows"], asked["depth"], asked["width"]
    size = dist.get_world_size()
    x, layer = _small(rows // size, depth) + dist.get_rank(), _layer(depth, width * size)
    fused = AllGatherLinear.of(layer, fuse=True)
    weight, came = fused.weight.detach(), torch.empty(rows, depth)
    all_gather_single(came, x)
    compute = partial(nn.functional.linear, came, weight)
    same = torch.equal(compute(), fused(x))
    return OperatorParts(
        compute, partial(all_gather_single, came, x), _without_grad(fused, x), same
    )


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
