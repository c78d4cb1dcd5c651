"""Embedding steps under given table placements, run by ranks of this machine.

A rank looks up its parts of tables by torch, exchanges what it pooled with weft's all-to-all, gets
gradients back the same way, and changes its rows: forward, exchange, exchange, backward.
"""

from collections.abc import Sequence
from itertools import accumulate
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from weft.calibration.microbenchmarks import pin
from weft.cost.reuse import drawn_indices
from weft.models.tables import Shard, Table
from weft.runtime.world import World

_SETS = 2  # of indices, one step after another
_LEARNING = 1e-9


class Task(NamedTuple):
    """Tables, the batch size, and the placements to compare, each a tuple of shards."""

    tables: tuple[Table, ...]
    batch: int
    plans: tuple[tuple[Shard, ...], ...]


def measure_task(world: World, task: Task, rounds: int) -> list[list[float]]:
    """Carry out steps of every plan in turn; return the seconds of each by plan and round."""
    pin(world)
    torch.set_num_threads(1)
    indices = _indices(task)
    memory = [torch.full((table.rows * table.dim,), 0.5) for table in task.tables]
    plans = [_PlacedTables(world, task, plan, memory, indices) for plan in task.plans]
    times: list[list[float]] = [[] for _ in plans]
    for turn in range(rounds + 1):
        for placed, mine in zip(plans, times, strict=True):
            world.barrier()
            begin = perf_counter()
            placed.step(turn)
            world.barrier()
            mine.append(perf_counter() - begin)
    return [each[1:] for each in times]  # the first one warms up


Bags = list[tuple[Tensor, Tensor]]  # of each table: indices and offsets


def _indices(task: Task) -> list[Bags]:
    """Draw what all samples look up, the same on every rank."""
    generator = np.random.default_rng(len(task.tables))
    found: list[Bags] = []
    for _ in range(_SETS):
        bags = []
        for table in task.tables:
            count = task.batch * int(table.pooling)
            rows = drawn_indices(table.rows, count, table.zipf, generator)
            offsets = torch.arange(0, count + 1, int(table.pooling))
            bags.append((torch.from_numpy(rows), offsets))
        found.append(bags)
    return found


class _Part(NamedTuple):
    """A part of a table on this rank, and its bags in every set."""

    bag: nn.EmbeddingBag
    bags: Bags


class _PlacedTables:
    """One placement of the tables: this rank's shards and buffers."""

    def __init__(
        self,
        world: World,
        task: Task,
        plan: Sequence[Shard],
        memory: list[Tensor],
        indices: list[Bags],
    ) -> None:
        self._world, num_ranks = world, world.num_ranks
        samples = task.batch // num_ranks
        first = _first_rows(plan)
        self._parts = [
            _part(shard, row, memory[shard.table], [bags[shard.table] for bags in indices])
            for shard, row in zip(plan, first, strict=True)
            if shard.rank == world.rank
        ]
        widths = [sum(s.dim for s in plan if s.rank == rank) for rank in range(num_ranks)]
        own = widths[world.rank]
        self._sent = [samples * own] * num_ranks
        self._came = [samples * width for width in widths]
        self._pooled = torch.zeros(task.batch, own)
        self._out, self._back = torch.zeros(sum(self._came)), torch.zeros(task.batch, own)
        weights = [part.bag.weight for part in self._parts]
        self._optimizer = torch.optim.SGD(weights or [torch.zeros(1)], lr=_LEARNING)

    def step(self, turn: int) -> None:
        pooled = [part.bag(*part.bags[turn % _SETS]) for part in self._parts]
        if pooled:
            torch.cat([each.detach() for each in pooled], 1, out=self._pooled)
        exchange = self._world.all_to_all
        exchange(self._out.numpy(), self._pooled.numpy().reshape(-1), self._came, self._sent)
        exchange(self._back.numpy().reshape(-1), self._out.numpy(), self._sent, self._came)
        if not pooled:
            return
        gradients = torch.split(self._back, [part.bag.embedding_dim for part in self._parts], 1)
        torch.autograd.backward(pooled, [each.contiguous() for each in gradients])
        self._optimizer.step()
        self._optimizer.zero_grad()


def _first_rows(plan: Sequence[Shard]) -> list[int]:
    """Return the row of its table with which each part begins: parts of rows stand in order."""
    last: dict[int, int] = {}
    first = []
    for shard in plan:
        first.append(last.get(shard.table, 0) if shard.by_rows else 0)
        if shard.by_rows:
            last[shard.table] = first[-1] + shard.rows
    return first


def _part(shard: Shard, first: int, memory: Tensor, bags: Bags) -> _Part:
    weight = memory[: shard.rows * shard.dim].view(shard.rows, shard.dim)
    bag = nn.EmbeddingBag.from_pretrained(
        weight, freeze=False, mode="sum", sparse=True, include_last_offset=True
    )
    if not shard.by_rows:
        return _Part(bag, bags)
    return _Part(bag, [_inside(each, first, shard.rows) for each in bags])


def _inside(bags: tuple[Tensor, Tensor], first: int, rows: int) -> tuple[Tensor, Tensor]:
    """Keep of every bag the rows that a part of a table has."""
    indices, offsets = bags
    kept = (indices >= first) & (indices < first + rows)
    counts = [0, *accumulate(kept.tolist())]
    return indices[kept] - first, torch.tensor(counts)[offsets]
