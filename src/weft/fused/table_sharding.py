"""Embedding table sharding: which rank holds which part of each table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from weft.errors import UnknownNameError, UsageError, nearest

SHARDING_KINDS = ("table-wise", "row-wise", "column-wise")


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """An embedding table: its name, rows and columns."""

    name: str
    rows: int
    dim: int


@dataclass(frozen=True, slots=True)
class TableShard:
    """The part of a table that ``rank`` holds: half-open ranges of rows and columns."""

    table: int
    rank: int
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def dim(self) -> int:
        """The number of columns."""
        return self.columns[1] - self.columns[0]


@dataclass(frozen=True, slots=True)
class Placement:
    """How one table is divided, and which ranks get the parts, in order.

    ``table-wise`` has one rank; ``row-wise`` and ``column-wise`` use all ranks unless some are
    named.
    """

    kind: str
    ranks: tuple[int, ...] = ()


def table_wise(rank: int) -> Placement:
    """Place a whole table on one rank."""
    return Placement("table-wise", (rank,))


def row_wise(*ranks: int) -> Placement:
    """Divide the rows of a table; by default every rank gets a part."""
    return Placement("row-wise", ranks)


def column_wise(*ranks: int) -> Placement:
    """Divide the columns of a table; by default every rank gets a part."""
    return Placement("column-wise", ranks)


Wanted = str | Placement
Placements = Wanted | Mapping[str, Wanted] | Sequence[Wanted]


@dataclass(frozen=True)
class Sharding:
    """Tables and their shards; every element of a table is in exactly one shard."""

    tables: tuple[EmbeddingTable, ...]
    shards: tuple[TableShard, ...]
    num_ranks: int

    def of(self, rank: int) -> tuple[TableShard, ...]:
        """Return the shards of a rank."""
        return tuple(shard for shard in self.shards if shard.rank == rank)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first column of each table in the row of a sample, and the row width at the end."""
        starts = [0]
        for table in self.tables:
            starts.append(starts[-1] + table.dim)
        return tuple(starts)

    @property
    def width(self) -> int:
        """The number of columns of a sample over all tables."""
        return self.starts[-1]

    @cached_property
    def joined(self) -> tuple[int, ...]:
        """Tables whose rows several ranks hold: their partial sums are added by the receiver."""
        return tuple(sorted({s.table for s in self.shards if self.is_partial(s)}))

    @property
    def joined_width(self) -> int:
        """The number of columns of those tables."""
        return sum(self.tables[table].dim for table in self.joined)

    def is_partial(self, shard: TableShard) -> bool:
        """Return whether other ranks hold rows of its table."""
        return shard.rows != (0, self.tables[shard.table].rows)

    def width_of(self, rank: int) -> int:
        """Return how many complete columns a rank contributes to each sample."""
        return sum(shard.dim for shard in self.of(rank) if not self.is_partial(shard))


def shard(tables: Sequence[EmbeddingTable], wanted: Placements, num_ranks: int) -> Sharding:
    """Shard tables as ``wanted``: one placement for all tables, or one per table.

    Whole tables without a rank are placed greedily on the least loaded rank, the largest first.
    """
    placements = _placements(tables, wanted)
    load = [0] * num_ranks
    found: dict[int, tuple[TableShard, ...]] = {}
    order = sorted(range(len(tables)), key=lambda t: (-tables[t].rows * tables[t].dim, t))
    for number in order:
        placement = _placed(tables[number], placements[number], load)
        found[number] = _cut(number, tables[number], placement)
        for each in found[number]:
            load[each.rank] += (each.rows[1] - each.rows[0]) * each.dim
    shards = tuple(each for number in range(len(tables)) for each in found[number])
    return Sharding(tuple(tables), shards, num_ranks)


def _placements(tables: Sequence[EmbeddingTable], wanted: Placements) -> list[Placement]:
    """Return the placement of each table; raise if a table has none or a name is unknown."""
    names = [table.name for table in tables]
    if not names or len(set(names)) != len(names):
        raise UsageError(
            f"tables: names must be unique and not empty (got {', '.join(names) or 'no tables'})."
        )
    if isinstance(wanted, str | Placement):
        return [_placement(wanted)] * len(names)
    if isinstance(wanted, Mapping):
        for name in wanted:
            if name not in names:
                raise UnknownNameError(f"sharding: unknown table {name!r}.", nearest(name, names))
        missing = [name for name in names if name not in wanted]
        if missing:
            raise UsageError(
                f"sharding: {len(missing)} of {len(names)} tables are missing: "
                f"{', '.join(missing)}.",
                "Give every table a placement: table_wise(rank), row_wise(), column_wise().",
            )
        return [_placement(wanted[name]) for name in names]
    if len(wanted) != len(names):
        raise UsageError(
            f"sharding: {len(wanted)} entries for {len(names)} tables.",
            "Give every table a placement: table_wise(rank), row_wise(), column_wise().",
        )
    return [_placement(each) for each in wanted]


def _placement(wanted: Wanted) -> Placement:
    placement = Placement(wanted) if isinstance(wanted, str) else wanted
    if placement.kind not in SHARDING_KINDS:
        raise UnknownNameError(
            f"unknown sharding kind {placement.kind!r}.", nearest(placement.kind, SHARDING_KINDS)
        )
    return placement


def _placed(table: EmbeddingTable, placement: Placement, load: list[int]) -> Placement:
    """Return the placement with its ranks filled in; raise if a rank does not exist."""
    ranks = placement.ranks
    if not ranks:
        everyone = tuple(range(len(load)))
        ranks = (load.index(min(load)),) if placement.kind == "table-wise" else everyone
    for rank in ranks:
        if not 0 <= rank < len(load):
            raise UsageError(
                f"table {table.name!r}: rank {rank} is out of range ({len(load)} ranks)."
            )
    if len(set(ranks)) != len(ranks) or (placement.kind == "table-wise" and len(ranks) > 1):
        raise UsageError(
            f"table {table.name!r}: invalid ranks {list(ranks)} for {placement.kind} sharding."
        )
    return Placement(placement.kind, ranks)


def _cut(number: int, table: EmbeddingTable, placement: Placement) -> tuple[TableShard, ...]:
    """Return the shards of a table, as even as possible, the larger ones first; none is empty."""
    rows, columns = (0, table.rows), (0, table.dim)
    if placement.kind == "row-wise":
        parts = spread(table.rows, len(placement.ranks))
        shards = [
            TableShard(number, r, p, columns) for r, p in zip(placement.ranks, parts, strict=True)
        ]
        return tuple(shard for shard in shards if shard.rows[0] < shard.rows[1])
    parts = spread(table.dim, len(placement.ranks))
    shards = [TableShard(number, r, rows, p) for r, p in zip(placement.ranks, parts, strict=True)]
    return tuple(shard for shard in shards if shard.dim)


def spread(count: int, parts: int) -> list[tuple[int, int]]:
    """Divide ``count`` into parts as even as possible, the larger ones first.

    >>> spread(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    each, rest = divmod(count, parts)
    starts = [part * each + min(part, rest) for part in range(parts + 1)]
    return list(pairwise(starts))
