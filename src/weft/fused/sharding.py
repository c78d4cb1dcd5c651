"""Which rank holds what of each embedding table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from weft.errors import UnknownNameError, UsageError, nearest

WAYS = ("table-wise", "row-wise", "column-wise")


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table: its name, rows and columns."""

    name: str
    rows: int
    dim: int


@dataclass(frozen=True, slots=True)
class Shard:
    """What ``rank`` holds of a table: rows and columns from the first number up to the second."""

    table: int
    rank: int
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def dim(self) -> int:
        """How many columns it has."""
        return self.columns[1] - self.columns[0]


@dataclass(frozen=True, slots=True)
class Placement:
    """How one table is cut and which ranks get the parts, in their order.

    ``table-wise`` has one rank, ``row-wise`` and ``column-wise`` all of them unless some are
    named.
    """

    way: str
    ranks: tuple[int, ...] = ()


def table_wise(rank: int) -> Placement:
    """Give a whole table to one rank."""
    return Placement("table-wise", (rank,))


def row_wise(*ranks: int) -> Placement:
    """Cut the rows of a table; by default every rank gets a part."""
    return Placement("row-wise", ranks)


def column_wise(*ranks: int) -> Placement:
    """Cut the columns of a table; by default every rank gets a part."""
    return Placement("column-wise", ranks)


Wanted = str | Placement
Placements = Wanted | Mapping[str, Wanted] | Sequence[Wanted]


@dataclass(frozen=True)
class Sharding:
    """Tables and their shards; every element of a table is in one of them."""

    tables: tuple[Table, ...]
    shards: tuple[Shard, ...]
    num_ranks: int

    def of(self, rank: int) -> tuple[Shard, ...]:
        """Give what a rank holds."""
        return tuple(shard for shard in self.shards if shard.rank == rank)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The column at which each table stands in the row of a sample, and where the row ends."""
        starts = [0]
        for table in self.tables:
            starts.append(starts[-1] + table.dim)
        return tuple(starts)

    @property
    def width(self) -> int:
        """How many columns a sample has, all tables together."""
        return self.starts[-1]

    @cached_property
    def joined(self) -> tuple[int, ...]:
        """The tables whose rows several ranks hold: their sums are joined where they go."""
        return tuple(sorted({s.table for s in self.shards if self.is_partial(s)}))

    @property
    def joined_width(self) -> int:
        """How many columns those have."""
        return sum(self.tables[table].dim for table in self.joined)

    def is_partial(self, shard: Shard) -> bool:
        """Whether others hold rows of its table."""
        return shard.rows != (0, self.tables[shard.table].rows)

    def width_of(self, rank: int) -> int:
        """How many columns a rank gives to each sample by itself."""
        return sum(shard.dim for shard in self.of(rank) if not self.is_partial(shard))


def shard(tables: Sequence[Table], wanted: Placements, num_ranks: int) -> Sharding:
    """Lay tables out as ``wanted`` says: a way for all of them, or one for each.

    Whole tables that name no rank go where the fewest bytes are, the largest first.
    """
    placements = _placements(tables, wanted)
    load = [0] * num_ranks
    found: dict[int, tuple[Shard, ...]] = {}
    order = sorted(range(len(tables)), key=lambda t: (-tables[t].rows * tables[t].dim, t))
    for number in order:
        placement = _placed(tables[number], placements[number], load)
        found[number] = _cut(number, tables[number], placement)
        for each in found[number]:
            load[each.rank] += (each.rows[1] - each.rows[0]) * each.dim
    shards = tuple(each for number in range(len(tables)) for each in found[number])
    return Sharding(tuple(tables), shards, num_ranks)


def _placements(tables: Sequence[Table], wanted: Placements) -> list[Placement]:
    """Give each table its placement; every table must have one, and every one a table."""
    names = [table.name for table in tables]
    if not names or len(set(names)) != len(names):
        raise UsageError(
            f"tables need names, all different: {', '.join(names) or 'there is none'}."
        )
    if isinstance(wanted, str | Placement):
        return [_placement(wanted)] * len(names)
    if isinstance(wanted, Mapping):
        for name in wanted:
            if name not in names:
                raise UnknownNameError(f"the sharding names {name!r}.", nearest(name, names))
        missing = [name for name in names if name not in wanted]
        if missing:
            raise UsageError(
                f"the sharding misses {len(missing)} of {len(names)} tables: {', '.join(missing)}.",
                "Say of every table how it is cut: table_wise(rank), row_wise(), column_wise().",
            )
        return [_placement(wanted[name]) for name in names]
    if len(wanted) != len(names):
        raise UsageError(
            f"the sharding has {len(wanted)} entries for {len(names)} tables.",
            "Say of every table how it is cut: table_wise(rank), row_wise(), column_wise().",
        )
    return [_placement(each) for each in wanted]


def _placement(wanted: Wanted) -> Placement:
    placement = Placement(wanted) if isinstance(wanted, str) else wanted
    if placement.way not in WAYS:
        raise UnknownNameError(f"no table is cut {placement.way!r}.", nearest(placement.way, WAYS))
    return placement


def _placed(table: Table, placement: Placement, load: list[int]) -> Placement:
    """Fill in the ranks, and look whether they exist."""
    ranks = placement.ranks
    if not ranks:
        everyone = tuple(range(len(load)))
        ranks = (load.index(min(load)),) if placement.way == "table-wise" else everyone
    for rank in ranks:
        if not 0 <= rank < len(load):
            raise UsageError(f"table {table.name!r} goes to rank {rank} of {len(load)} ranks.")
    if len(set(ranks)) != len(ranks) or (placement.way == "table-wise" and len(ranks) > 1):
        raise UsageError(f"table {table.name!r} goes to ranks {list(ranks)}, {placement.way}.")
    return Placement(placement.way, ranks)


def _cut(number: int, table: Table, placement: Placement) -> tuple[Shard, ...]:
    """Cut as evenly as possible; the first parts are the longer ones, empty ones are left out."""
    rows, columns = (0, table.rows), (0, table.dim)
    if placement.way == "row-wise":
        parts = spread(table.rows, len(placement.ranks))
        shards = [Shard(number, r, p, columns) for r, p in zip(placement.ranks, parts, strict=True)]
        return tuple(shard for shard in shards if shard.rows[0] < shard.rows[1])
    parts = spread(table.dim, len(placement.ranks))
    shards = [Shard(number, r, rows, p) for r, p in zip(placement.ranks, parts, strict=True)]
    return tuple(shard for shard in shards if shard.dim)


def spread(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut ``count`` into parts as even as possible, the longer ones first.

    >>> spread(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    each, rest = divmod(count, parts)
    starts = [part * each + min(part, rest) for part in range(parts + 1)]
    return list(pairwise(starts))
