"""Embedding tables, and which rank holds which part of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import FormatError, UsageError, nearest

ROW_DTYPES = {4: "fp32", 2: "fp16"}  # dtypes of tables, by the bytes of an element


@dataclass(frozen=True, slots=True)
class Table:
    """One embedding table: ``pooling`` lookups a sample, drawn by Zipf's law of power ``zipf``.

    A ``zipf`` of 0 is uniform.
    """

    name: str
    rows: int
    dim: int
    pooling: float = 1.0
    zipf: float = 0.0
    itemsize: int = 4

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""
        return self.rows * self.dim * self.itemsize


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a table on one rank: some of its rows, or some of its columns."""

    table: int
    rank: int
    rows: int
    dim: int
    by_rows: bool = False

    def nbytes(self, itemsize: int) -> int:
        """Bytes of its weights."""
        return self.rows * self.dim * itemsize


def read_tables(document: dict[str, Any], where: str) -> tuple[Table, ...]:
    """Read the tables of a TOML document: an array ``tables``, each with rows and dim.

    ``count`` stands for that many equal tables; ``counts``, how often each index was seen, gives
    the power of Zipf's law that fits it best.
    """
    entries = document.get("tables")
    if not isinstance(entries, list) or not entries:
        raise FormatError(f"{where} has no tables", "Write [[tables]] with rows and dim.")
    found: list[Table] = []
    for number, entry in enumerate(entries):
        found += _tables(entry, f"{where}, table {number}", len(found))
    return tuple(found)


# More bytes than a machine can address, or more tables than any model has.
_MOST = {"rows": 2**53, "dim": 2**31, "count": 10**6, "itemsize": 2**10}
_KNOWN = ("name", "rows", "dim", "pooling", "zipf", "itemsize", "count", "counts")


def _tables(entry: Any, where: str, first: int) -> list[Table]:
    if not isinstance(entry, dict):
        raise FormatError(
            f"{where}: expected a table with rows and dim (got {type(entry).__name__})"
        )
    for key in entry:
        if key not in _KNOWN:
            raise FormatError(f"{where} has {key!r}", nearest(key, _KNOWN))
    for key in ("rows", "dim", "count", "itemsize"):
        value = entry.get(key, None if key in ("rows", "dim") else 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise FormatError(f"{where}: {key} must be a whole number above zero")
        if value > _MOST[key]:
            raise FormatError(f"{where}: {key} is over {_MOST[key]}")
    pooling, zipf = _number(entry, "pooling", 1.0, where), _number(entry, "zipf", 0.0, where)
    if pooling <= 0:
        raise FormatError(f"{where}: pooling must be above zero")
    if "counts" in entry:
        zipf = _zipf_of_counts(entry, where)
    count = int(entry.get("count", 1))
    name, size = str(entry.get("name", "table")), int(entry.get("itemsize", 4))
    return [
        Table(
            name if count == 1 and "name" in entry else f"{name}{first + k}",
            entry["rows"],
            entry["dim"],
            pooling,
            zipf,
            size,
        )
        for k in range(count)
    ]


_MOST_NUMBER = 1e15  # lookups of one sample, or a power: far beyond what means anything


def _number(entry: dict[str, Any], key: str, default: float, where: str) -> float:
    value = entry.get(key, default)
    if (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not 0 <= value <= _MOST_NUMBER
    ):
        raise FormatError(f"{where}: {key} must be a number of zero or more, not {value!r}")
    return float(value)


def _zipf_of_counts(entry: dict[str, Any], where: str) -> float:
    counts = entry["counts"]
    if not isinstance(counts, list) or any(isinstance(v, (str, bool, list, dict)) for v in counts):
        raise FormatError(f"{where}: counts must be a list of numbers")
    if "zipf" in entry:
        raise FormatError(f"{where} has counts and zipf", "Leave one out: counts give zipf.")
    if len(counts) > entry["rows"]:
        raise FormatError(
            f"{where}: {len(counts)} counts for {entry['rows']} rows",
            "Give one count for each index that was seen.",
        )
    return zipf_of(counts, where)


def zipf_of(counts: Sequence[Any], where: str) -> float:
    """Fit the power of Zipf's law to how often indices were seen: slope of log count over rank."""
    try:
        values = np.asarray(counts, float)
    except OverflowError:
        raise FormatError(f"{where}: a count is larger than any number of lookups") from None
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise FormatError(f"{where}: counts must be a list of numbers")
    if (values < 0).any():
        worst = int(np.argmin(values))
        raise FormatError(
            f"{where}: counts must be >= 0 (got {values[worst]:g} at {worst})",
            "Give how often each index was seen: numbers of zero or more.",
        )
    seen = np.sort(values[values > 0])[::-1]
    if len(seen) < 2:
        raise FormatError(f"{where}: fewer than two indices were ever seen")
    place = np.log(np.arange(1, len(seen) + 1))
    slope = np.polyfit(place, np.log(seen), 1, w=np.sqrt(seen))[0]
    return float(max(0.0, -slope))


def table_wise(tables: Sequence[Table], num_ranks: int) -> tuple[Shard, ...]:
    """Return each table to the rank with the least lookups so far, the heaviest first."""
    if num_ranks < 1:
        raise UsageError(f"tables need at least 1 rank, not {num_ranks}")
    load = [0.0] * num_ranks
    placed = []
    for number in sorted(range(len(tables)), key=lambda t: -tables[t].pooling * tables[t].dim):
        rank = min(range(num_ranks), key=load.__getitem__)
        table = tables[number]
        load[rank] += table.pooling * table.dim
        placed.append(Shard(number, rank, table.rows, table.dim))
    return tuple(sorted(placed, key=lambda shard: shard.table))


_ROOM = 60e9  # bytes of tables and state on a rank: HugeCTR's memory_cap_for_embedding
_ROUNDS = 20  # of HugeCTR's planner


def cut_by_rows(
    tables: Sequence[Table], places: int, exchange: float, *, ranks: int = 1, state: float = 1.0
) -> tuple[Shard, ...]:
    """Cut the table with most lookups into twice as many parts, time and again, as HugeCTR does.

    Parts go to the place, a node of ``ranks`` ranks that share its tables, with the least lookups
    so far, where each part counts as ``exchange`` lookups more: its vectors are sent too. The best
    round is taken, or else all tables are cut over all places. ``state`` is bytes for each byte.
    """
    numbers = range(len(tables))
    pieces = dict.fromkeys(numbers, 1)
    whole = sum(table.pooling / places + exchange for table in tables)
    everywhere = [(n, place) for n in numbers for place in range(places)]
    best = whole, everywhere, dict.fromkeys(numbers, places)
    for _ in range(_ROUNDS):
        load, used, placed = [0.0] * places, [0.0] * places, list[tuple[int, int]]()
        next_cut = -1
        parts = [n for n in numbers for _ in range(pieces[n])]
        for n in sorted(parts, key=lambda n: -tables[n].pooling / pieces[n]):
            size = (1 + state) * tables[n].nbytes / pieces[n]
            free = [
                p for p in range(places) if (n, p) not in placed and used[p] + size <= ranks * _ROOM
            ]
            if not free:
                next_cut = n  # no place has room for a part of it
                break
            place = min(free, key=load.__getitem__)
            load[place] += tables[n].pooling / pieces[n] + exchange
            used[place] += size
            placed.append((n, place))
        else:
            if max(load) < best[0]:
                best = max(load), placed, dict(pieces)
        more = [n for n in numbers if 2 * pieces[n] <= min(places, tables[n].rows)]
        if next_cut < 0 and more:
            next_cut = max(more, key=lambda n: tables[n].pooling / pieces[n])
        if next_cut not in more:
            break
        pieces[next_cut] *= 2
    _, placed, pieces = best
    return tuple(
        Shard(n, place * ranks + rank, max(1, tables[n].rows // parts), tables[n].dim, parts > 1)
        for n, place in placed
        for parts in (pieces[n] * ranks,)
        for rank in range(ranks)
    )
