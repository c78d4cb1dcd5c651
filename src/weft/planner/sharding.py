"""Which rank holds which part of which embedding table: sharders, and the choice among them.

A plan is priced by what decides a step of lookups: the slowest rank's kernels forward and
backward, and the exchange that waits for it. Greedy sharders place the heaviest part first, by
one idea of weight each; a search then starts from the best of them and moves parts off the
slowest rank as long as that helps. Parts of tables, by columns or by rows, are made where whole
tables do not fit or one alone is too heavy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.cost.price import price_columns
from weft.errors import NoPlanError, UsageError
from weft.models.tables import ROW_DTYPES, Shard, Table
from weft.planner.prices import Prices
from weft.step.step_graph import Collective
from weft.units import brief, format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.hardware import Platform

    Floats = NDArray[np.float64]

_SPARE = 0.15  # of the memory is left to activations, dense weights and fragmentation
_ROUNDS = 400  # moves that a search tries at most
_STATE = 2.0  # bytes of weights and optimizer state for each byte of weights


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """Shards, the seconds of the step part they decide, and the bytes of the fullest rank."""

    __repr__ = brief

    name: str
    shards: tuple[Shard, ...]
    seconds: float
    bytes_per_rank: int
    lookups: float
    exchange: float
    slowest: int


@dataclass
class _Parts:
    """Parts of tables as columns: what each weighs by every idea, and what its kernels take."""

    shards: list[Shard]
    nbytes: Floats
    forward: Floats
    backward: Floats
    dims: Floats
    lookups: Floats

    @property
    def seconds(self) -> Floats:
        """What kernels of both passes take."""
        return self.forward + self.backward


class Sharder:
    """Places tables on the ranks of a platform for batches of ``batch`` samples."""

    def __init__(self, tables: Sequence[Table], platform: Platform, batch: int) -> None:
        self.tables, self.platform, self.batch = tuple(tables), platform, batch
        self.num_ranks = platform.num_ranks
        if batch < self.num_ranks:
            raise UsageError(
                f"{self.num_ranks} ranks are more than the {batch} samples of a batch",
                f"Use --set batch={self.num_ranks} or more.",
            )
        self.prices = Prices(platform)
        self.room = platform.require_device().memory_bytes * (1 - _SPARE)
        self._check_room()
        self._exchanges: dict[int, float] = {}

    def _check_room(self) -> None:
        needed = _STATE * sum(table.nbytes for table in self.tables)
        if needed > self.room * self.num_ranks:
            enough = -(-needed // self.room)
            raise NoPlanError(
                f"the tables need {format_size(round(needed))} with their optimizer state; "
                f"{self.num_ranks} ranks have {format_size(round(self.room * self.num_ranks))}.",
                f"Try: --ranks {enough:.0f} or more.",
            )

    def plans(self) -> list[ShardingPlan]:
        """Price every sharder's plan and what a search makes of the best, the best first."""
        found = [self._greedy(name, weigh) for name, weigh in _WEIGHTS.items()]
        sharders = (("step", ""), ("column-wise", "column"), ("row-wise", "row"))
        found += [self._greedy(name, self._step_weight, cut) for name, cut in sharders]
        known = [plan for plan in found if plan is not None]
        known.append(self._everywhere())
        known.append(self._search(min(known, key=lambda plan: plan.seconds)))
        return sorted(known, key=lambda plan: plan.seconds)

    def _step_weight(self, parts: _Parts) -> Floats:
        """Weigh a part by its kernels and by its share of the exchange."""
        mean = np.full(self.num_ranks, parts.dims.sum() / self.num_ranks)
        weight: Floats = parts.seconds + parts.dims * (self._exchange(mean) / mean[0])
        return weight

    def priced(self, name: str, shards: Sequence[Shard]) -> ShardingPlan:
        """Price shards with a given placement."""
        parts = self._columns(list(shards))
        owner = np.array([shard.rank for shard in shards])
        return self._plan(name, parts, owner)

    def parts(self, cut: str = "") -> _Parts:
        """Make the parts to be placed: whole tables, and pieces of what is too large for that."""
        whole = self._columns([Shard(n, -1, t.rows, t.dim) for n, t in enumerate(self.tables)])
        mean = whole.seconds.sum() / self.num_ranks
        heavy = (_STATE * whole.nbytes > self.room / 2) | ((whole.seconds > mean) & bool(cut))
        if not heavy.any():
            return whole
        made: list[Shard] = []
        for number, table in enumerate(self.tables):
            shard = whole.shards[number]
            if not heavy[number]:
                made.append(shard)
                continue
            size = max(_STATE * table.nbytes / (self.room / 2), whole.seconds[number] / mean)
            made += _cut(shard, min(self.num_ranks, int(np.ceil(size))), cut or "row")
        return self._columns(made)

    def _columns(self, shards: list[Shard]) -> _Parts:
        """Price lookups of every part; those that are alike but for their rank are one price."""
        kinds = [(s.table, s.rows, s.dim, s.by_rows) for s in shards]
        number = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
        alike = np.array([number[kind] for kind in kinds], np.int64)
        some = self._priced_columns([Shard(t, -1, rows, dim, by) for t, rows, dim, by in number])
        columns = (some.nbytes, some.forward, some.backward, some.dims, some.lookups)
        return _Parts(shards, *(each[alike] for each in columns))

    def _priced_columns(self, shards: list[Shard]) -> _Parts:
        """Price lookups of parts, forward and backward, all in one go."""
        tables = [self.tables[shard.table] for shard in shards]
        rows = np.array([shard.rows for shard in shards], float)
        dims = np.array([shard.dim for shard in shards], float)
        pairs = zip(shards, tables, strict=True)
        share = np.array([s.rows / t.rows if s.by_rows else 1.0 for s, t in pairs])
        pooling = np.array([table.pooling for table in tables]) * share
        columns = {
            "batch": np.full(len(shards), float(self.batch)),
            "rows": rows,
            "dim": dims,
            "pooling": np.maximum(pooling, 1e-3),
            "zipf": np.array([table.zipf for table in tables]),
        }
        device = self.platform.require_device()
        items = np.array([table.itemsize for table in tables], float)
        forward, backward = np.zeros(len(shards)), np.zeros(len(shards))
        for item in np.unique(items).tolist():  # rows of fewer bytes come sooner
            mine = items == item
            some = {key: values[mine] for key, values in columns.items()}
            dtype = ROW_DTYPES.get(int(item), "fp32")
            for family, seconds in (("embedding", forward), ("embedding-backward", backward)):
                seconds[mine] = price_columns(family, some, device, dtype).seconds
        return _Parts(shards, rows * dims * items, forward, backward, dims, pooling * self.batch)

    def _greedy(
        self, name: str, weigh: Callable[[_Parts], Floats], cut: str = ""
    ) -> ShardingPlan | None:
        """Return the heaviest part to the rank with the least weight that has room for it."""
        parts = self.parts(cut)
        weight = weigh(parts)
        owner = np.full(len(parts.shards), -1)
        ranks = [(0.0, rank) for rank in range(self.num_ranks)]
        used = np.zeros(self.num_ranks)
        for part in np.argsort(-weight, kind="stable").tolist():
            full = []
            while ranks:
                load, rank = heapq.heappop(ranks)
                if used[rank] + _STATE * parts.nbytes[part] <= self.room:
                    owner[part] = rank
                    used[rank] += _STATE * parts.nbytes[part]
                    heapq.heappush(ranks, (load + weight[part], rank))
                    break
                full.append((load, rank))
            for entry in full:
                heapq.heappush(ranks, entry)
            if owner[part] < 0:
                return None
        return self._plan(name, parts, owner)

    def _everywhere(self) -> ShardingPlan:
        """Cut every table by rows over all ranks: what fits together fits so."""
        made: list[Shard] = []
        for number, table in enumerate(self.tables):
            pieces = _cut(Shard(number, -1, table.rows, table.dim), self.num_ranks, "row")
            made += [
                Shard(number, (index + number) % self.num_ranks, s.rows, s.dim, s.by_rows)
                for index, s in enumerate(pieces)
            ]
        return self.priced("everywhere", made)

    def _step(self, parts: _Parts, owner: NDArray[np.int64]) -> tuple[float, float, int]:
        """Price lookups and exchange of a placement, and name its slowest rank."""
        # Ranks meet in the exchange between the passes, so each pass has its own slowest rank.
        passes = [np.bincount(owner, w, self.num_ranks) for w in (parts.forward, parts.backward)]
        lookups = float(sum(each.max() for each in passes))
        dims = np.bincount(owner, parts.dims, self.num_ranks).astype(np.float64)
        return lookups, self._exchange(dims), int(np.argmax(passes[0] + passes[1]))

    def _plan(self, name: str, parts: _Parts, owner: NDArray[np.int64]) -> ShardingPlan:
        lookups, exchange, slowest = self._step(parts, owner)
        nbytes = np.bincount(owner, parts.nbytes, self.num_ranks)
        placed = tuple(
            Shard(s.table, int(r), s.rows, s.dim, s.by_rows)
            for s, r in zip(parts.shards, owner.tolist(), strict=True)
        )
        used = int(_STATE * nbytes.max())
        return ShardingPlan(name, placed, lookups + exchange, used, lookups, exchange, slowest)

    def _exchange(self, dims: Floats) -> float:
        """Price both exchanges: the rank that sends most decides (arXiv 2404.12674).

        Nobody receives more: that is the sum of what the others send to one rank.
        """
        if self.num_ranks < 2:
            return 0.0
        size = _rounded(int(dims.max() * self.batch * 4))
        if size not in self._exchanges:
            what = Collective("all_to_all", size, "fp32")
            ranks = tuple(range(self.num_ranks))
            self._exchanges[size] = 2 * self.prices.collective(what, ranks)
        return self._exchanges[size]

    def _search(self, best: ShardingPlan) -> ShardingPlan:
        """Move parts off the slowest rank, or exchange them, while the step gets shorter."""
        parts = self._columns(list(best.shards))
        owner = np.array([shard.rank for shard in best.shards])
        now = best.seconds
        for _ in range(_ROUNDS):
            change = self._better(parts, owner, now)
            if change is None:
                break
            owner, now = change
        return self._plan("search", parts, owner)

    def _better(
        self, parts: _Parts, owner: NDArray[np.int64], now: float
    ) -> tuple[NDArray[np.int64], float] | None:
        """Find a move or an exchange with the lightest ranks that shortens the step."""
        for weight in (parts.seconds, parts.dims):  # lookups decide, or the exchange does
            load = np.bincount(owner, weight, self.num_ranks)
            source = int(np.argmax(load))
            for target in np.argsort(load)[:_TARGETS].tolist():
                mine, theirs = np.flatnonzero(owner == source), np.flatnonzero(owner == target)
                for give, take in _trades(weight, mine, theirs, load[source] - load[target]):
                    moved = owner.copy()
                    moved[give] = target
                    moved[take] = source
                    if not self._fits(parts, moved):
                        continue
                    seconds = sum(self._step(parts, moved)[:2])
                    if seconds < now * (1 - 1e-9):
                        return moved, seconds
        return None

    def _fits(self, parts: _Parts, owner: NDArray[np.int64]) -> bool:
        used = _STATE * np.bincount(owner, parts.nbytes, self.num_ranks)
        return bool(used.max() <= self.room)


_TARGETS = 4  # the lightest ranks that a part may move to


def _trades(
    weight: Floats, mine: NDArray[np.int64], theirs: NDArray[np.int64], gap: float
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return moves and exchanges that bring two ranks closer, those nearest to even first."""
    nothing = np.empty(0, np.int64)
    found = []
    for give in mine:
        found.append((abs(gap / 2 - weight[give]), np.array([give]), nothing))
        for take in theirs:
            moved = weight[give] - weight[take]
            if 0 < moved < gap:
                found.append((abs(gap / 2 - moved), np.array([give]), np.array([take])))
    found.sort(key=lambda entry: entry[0])
    return [(give, take) for _, give, take in found[:8]]


def _cut(shard: Shard, pieces: int, axis: str) -> list[Shard]:
    """Cut a table into parts: of rows, or of columns no narrower than what memory brings."""
    if axis == "column":
        pieces = max(1, min(pieces, shard.dim // 4))
        sizes = [shard.dim // pieces + (k < shard.dim % pieces) for k in range(pieces)]
        return [Shard(shard.table, -1, shard.rows, size) for size in sizes]
    pieces = max(1, min(pieces, shard.rows))
    sizes = [shard.rows // pieces + (k < shard.rows % pieces) for k in range(pieces)]
    return [Shard(shard.table, -1, size, shard.dim, by_rows=True) for size in sizes]


def _rounded(size: int) -> int:
    """Keep three digits: prices of exchanges that differ less are asked for once."""
    scale = int(10 ** max(0, len(str(size)) - 3))
    return -(-size // scale) * scale


_WEIGHTS: dict[str, Callable[[_Parts], Floats]] = {
    "size": lambda parts: parts.nbytes,
    "dim": lambda parts: parts.dims,
    "lookup": lambda parts: parts.lookups * parts.dims,
    "norm": lambda parts: np.sqrt(
        (parts.nbytes / parts.nbytes.max()) ** 2
        + (parts.lookups * parts.dims / (parts.lookups * parts.dims).max()) ** 2
    ),
    "time": lambda parts: parts.seconds,
}


def explain(plan: ShardingPlan, others: Sequence[ShardingPlan]) -> str:
    """Return why a plan is best: what it saves over the others, and where its time goes."""
    worst = max(others, key=lambda each: each.seconds, default=plan)
    cut = len({s.table for s in plan.shards}) != len(plan.shards)
    return (
        f"{plan.name}: its slowest rank looks up {plan.lookups / plan.seconds:.0%} of the time and "
        f"exchanges for the rest; {worst.name} takes {worst.seconds / plan.seconds:.2f} times as "
        f"long{', large tables are cut' if cut else ''}"
    )
