"""What collectives take here by Gloo and by weft, and what DDP adds to them.

Two ranks, each with all its threads on a core of its own, as ``weft bench predict`` trains.
"""

from __future__ import annotations

import os
import socket
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weft.runtime.measuring import RANKS, pin
from weft.runtime.spawn import spawn
from weft.torch.steady import steady_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weft.runtime.world import World

LIBRARIES = ("gloo", "weft")
KINDS = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast")
SIZES = tuple(1 << shift for shift in (10, 13, 16, 18, 20, 22, 24))
# Parameters and bytes of each, of models that do nothing but have gradients.
WRAPPED = ((4, 1 << 10), (64, 1 << 10), (8, 1 << 17), (8, 1 << 20), (64, 1 << 17))
_TIMEOUT = 60.0
_REPEATS, _LEAST = 24, 5

Curves = dict[tuple[str, str], list[tuple[int, float]]]  # by library and kind: bytes, seconds
Wrapped = dict[tuple[str, int, int], float]  # by library, parameters, bytes of each: seconds more


def time_collectives(kinds: tuple[str, ...] = KINDS) -> tuple[Curves, Wrapped]:
    """Time collectives of all sizes and the steps of wrapped models; the slower rank counts."""
    with steady_memory():
        first, second = spawn(_timed, RANKS, _free_port(), kinds, timeout=_TIMEOUT)
    curves: Curves = {}
    for (library, kind, nbytes), seconds in first[0].items():
        slower = max(seconds, second[0][library, kind, nbytes])
        curves.setdefault((library, kind), []).append((nbytes, slower))
    return curves, {key: (each + second[1][key]) / 2 for key, each in first[1].items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _timed(world: World, port: int, kinds: tuple[str, ...]) -> tuple[dict[Any, float], Wrapped]:
    pin(world)  # before there are other threads, so that all stay there
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=world.rank, world_size=world.num_ranks)
    import weft.torch  # noqa: F401 - it registers the backend

    groups = {"gloo": dist.group.WORLD, "weft": dist.new_group(backend="weft")}
    try:
        found = {
            (library, kind, nbytes): _median(world, act, _count(nbytes))
            for nbytes in SIZES
            for kind in kinds
            for library, group in groups.items()
            for act in (_collective(kind, nbytes, world.num_ranks, group),)
        }
        return found, dict(_wrapped(world, groups))
    finally:
        dist.destroy_process_group()


def _collective(kind: str, nbytes: int, num_ranks: int, group: Any) -> Callable[[], Any]:
    """Give the call; ``nbytes`` counts as nccl-tests does."""
    whole, part = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4 // num_ranks)
    gathered = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scattered = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    other = torch.zeros_like(whole)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "all_gather": lambda: gathered(whole, part, group=group),
        "reduce_scatter": lambda: scattered(part, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
    }
    return calls[kind]


def _count(nbytes: int) -> int:
    """Say how often a size is repeated: the same number on both ranks, few times for large ones."""
    return max(_LEAST, min(_REPEATS, (16 << 20) // nbytes))


def _median(world: World, act: Callable[[], Any], count: int) -> float:
    act()
    found = []
    for _ in range(count):
        world.barrier()
        start = time.perf_counter()
        act()
        found.append(time.perf_counter() - start)
    return median(found)


class _Held(nn.Module):
    """Parameters that are used once each."""

    def __init__(self, count: int, nbytes: int) -> None:
        super().__init__()
        each = nbytes // 4
        self.held = nn.ParameterList(nn.Parameter(torch.ones(each)) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use all of them."""
        return torch.stack([(each * x).sum() for each in self.held]).sum()


def _wrapped(world: World, groups: dict[str, Any]) -> Iterator[tuple[tuple[str, int, int], float]]:
    for count, nbytes in WRAPPED:
        plain = _step(_Held(count, nbytes), nbytes)
        for library, group in groups.items():
            wrapped = _step(
                DistributedDataParallel(_Held(count, nbytes), process_group=group), nbytes
            )
            more = _difference(world, wrapped, plain)
            yield (library, count, nbytes), more


def _step(model: nn.Module, nbytes: int) -> Callable[[], Any]:
    x = torch.ones(nbytes // 4)

    def step() -> None:
        model.zero_grad()
        model(x).backward()

    return step


def _difference(world: World, first: Callable[[], Any], second: Callable[[], Any]) -> float:
    """Give how much longer the first takes, in turn with the second."""
    for _ in range(3):
        first()
        second()
    found: list[float] = []
    for _ in range(8):
        times = []
        for act in (first, second):
            world.barrier()
            begin = time.perf_counter()
            act()
            world.barrier()
            times.append(time.perf_counter() - begin)
        found.append(times[0] - times[1])
    return median(found)
