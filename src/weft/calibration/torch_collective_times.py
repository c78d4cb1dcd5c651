"""Durations of collectives by Gloo and by weft, and the overhead of DDP.

Two ranks, each with all its threads on a core of its own, as ``weft bench predict`` trains.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weft.calibration.microbenchmarks import RANKS, pin
from weft.calibration.steady_memory import steady_memory
from weft.runtime.env_rendezvous import free_port
from weft.runtime.spawn import spawn
from weft.torch.backend.c10d import all_gather_single, reduce_scatter_single

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weft.runtime.world import World

LIBRARIES = ("gloo", "weft")
KINDS = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast")
SIZES = tuple(1 << shift for shift in (10, 13, 16, 18, 20, 22, 24))
# Parameters and bytes of each, of models that do nothing but have gradients.
WRAPPED = ((4, 1 << 10), (64, 1 << 10), (8, 1 << 17), (8, 1 << 20), (64, 1 << 17))
_TIMEOUT = 60.0
_REPEATS, _LEAST = 8, 2  # of a size in a round: a library may be slow for some moments
_ROUNDS = 3
_WARMUPS, _DIFFERENCES = 3, 12

Curves = dict[tuple[str, str], list[tuple[int, float]]]  # by library and kind: bytes, seconds
Wrapped = dict[tuple[str, int, int], float]  # by library, parameters, bytes of each: seconds more


def time_collectives() -> tuple[Curves, Wrapped]:
    """Time collectives of all sizes and the steps of wrapped models; the slower rank counts.

    Each library has processes of its own: threads of one would be in the other's way.
    """
    curves: Curves = {}
    wrapped: Wrapped = {}
    for library in LIBRARIES:
        with steady_memory():
            first, second = spawn(_timed, RANKS, library, free_port(), timeout=_TIMEOUT)
        for (kind, nbytes), seconds in first[0].items():
            slower = max(seconds, second[0][kind, nbytes])
            curves.setdefault((library, kind), []).append((nbytes, slower))
        for (count, nbytes), differences in first[1].items():
            both = zip(differences, second[1][count, nbytes], strict=True)
            # Who is faster alone comes early to the next wrapped step, and waits there.
            wrapped[library, count, nbytes] = median(map(min, both))
    return curves, wrapped


def _timed(
    world: World, library: str, port: int
) -> tuple[dict[tuple[str, int], float], dict[tuple[int, int], list[float]]]:
    pin(world)  # before there are other threads, so that all stay there
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if library == "weft":
        import weft.torch  # noqa: F401 - it registers the backend
    dist.init_process_group(library, rank=world.rank, world_size=world.num_ranks)
    try:
        found: dict[tuple[str, int], list[float]] = defaultdict(list)
        for nbytes in SIZES * _ROUNDS:
            for kind in KINDS:
                act = _collective(kind, nbytes, world.num_ranks)
                found[kind, nbytes] += _repeated(act, _count(nbytes))
        return {key: median(each) for key, each in found.items()}, dict(_wrapped())
    finally:
        dist.destroy_process_group()


def _collective(kind: str, nbytes: int, num_ranks: int) -> Callable[[], Any]:
    """Return the call; ``nbytes`` counts as in nccl-tests."""
    whole, part = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4 // num_ranks)
    other = torch.zeros_like(whole)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "all_gather": lambda: all_gather_single(whole, part),
        "reduce_scatter": lambda: reduce_scatter_single(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }
    return calls[kind]


def _count(nbytes: int) -> int:
    """Return how often a size is repeated: equal on both ranks, fewer for large ones."""
    return max(_LEAST, min(_REPEATS, (6 << 20) // nbytes))


def _repeated(act: Callable[[], Any], count: int) -> list[float]:
    """Time calls one after another; the first one lets both ranks meet."""
    act()
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        act()
        found.append(time.perf_counter() - begin)
    return found


class _Held(nn.Module):
    """Parameters that are used once each."""

    def __init__(self, count: int, nbytes: int) -> None:
        super().__init__()
        each = nbytes // 4
        self.held = nn.ParameterList(nn.Parameter(torch.ones(each)) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use all of them."""
        return torch.stack([(each * x).sum() for each in self.held]).sum()


def _wrapped() -> Iterator[tuple[tuple[int, int], list[float]]]:
    for count, nbytes in WRAPPED:
        unwrapped = _step(_Held(count, nbytes), nbytes)
        wrapped = _step(DistributedDataParallel(_Held(count, nbytes)), nbytes)
        yield (count, nbytes), _differences(wrapped, unwrapped)


def _step(model: nn.Module, nbytes: int) -> Callable[[], Any]:
    x = torch.ones(nbytes // 4)

    def step() -> None:
        model.zero_grad()
        model(x).backward()

    return step


def _differences(first: Callable[[], Any], second: Callable[[], Any]) -> list[float]:
    """Return how much longer the first takes than the second, measured alternately."""
    found: list[float] = []
    for turn in range(_WARMUPS + _DIFFERENCES):
        times = []
        for act in (first, second):
            begin = time.perf_counter()
            act()
            times.append(time.perf_counter() - begin)
        if turn >= _WARMUPS:
            found.append(times[0] - times[1])
    return found
