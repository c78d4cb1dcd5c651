"""Ranks that are cores of one memory: what they move costs what was measured of their caches.

A core alone copies at one rate and next to others at a lower one, and both fall with the bytes
that a rank has in use. So a row takes so many seconds of its core for each byte, and so many of
the memory that all cores share. Measured with everything in place again and again, as a
training step and nccl-tests do it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.hardware import Cores
from weft.schedule import CommandKind, Reduce
from weft.simulator.resource_demands import Demands, Resource, key
from weft.simulator.rows import Rows, alike_in_node
from weft.units import parse_size

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MEASURED_CORES = 2  # rates "both" are of two cores at once
# In copies: see _writes.
_SWAP = 4 / 3
_CACHED = 1 << 20  # bytes that stay near a core until its next command


class Seconds(NamedTuple):
    """What a byte of each row takes: of a core, and of the memory that the cores share."""

    core: Floats
    memory: Floats


def seconds_per_byte(rows: Rows, size: Floats, shared: Cores) -> Seconds:
    """Price a byte of each row, by its kind, its size, and what its rank has in use."""
    table = rows.table
    in_use = np.where(_is_warm(rows), _touched(rows), _in_use(rows))
    streamed = np.isin(table.kind, (CommandKind.COPY, CommandKind.ENCODE, CommandKind.DECODE))
    streamed &= size >= shared.streamed_from
    reduces = table.kind == CommandKind.REDUCE
    weight = np.where(reduces, _reducing(rows, shared), _writes(rows))
    core, memory = (
        weight
        / np.select(
            [reduces, streamed],
            [_rate(shared, f"reduced{which}", in_use), _rate(shared, f"streamed{which}", in_use)],
            _rate(shared, f"cached{which}", in_use),
        )
        for which in ("", "_both")
    )
    # Measured with two cores at once: of each second the memory gave each of them half.
    return Seconds(core, memory / MEASURED_CORES)


def add_shared_memory(demands: Demands, rows: Rows, mine: Ints, seconds: Floats) -> None:
    """Add the one memory of all cores of a node, which has a second to give each second."""
    node = rows.symmetry.representative(rows.rank[mine]) // rows.platform.node_size
    alike = alike_in_node(rows.platform, rows.symmetry)
    demands.add(mine, key(Resource.HOST_MEMORY, node), seconds[mine] * alike, 1.0)


def _in_use(rows: Rows) -> int:
    buffers = rows.table.schedule.buffers
    return max(sum(b.size_on(int(rank)) for b in buffers) for rank in rows.ranks)


def _touched(rows: Rows) -> Floats:
    """Return the bytes of all slices of a row."""
    total = np.concatenate(([0], np.cumsum(rows.table.access_nbytes)))
    touched: Floats = np.diff(total[rows.table.access_start]).astype(np.float64)
    return touched


def _is_warm(rows: Rows) -> NDArray[np.bool_]:
    """Return which rows touch only what the one before them touched: the caches still hold it.

    So a sum is written on to the other ranks, piece by piece, where a row is small enough for that.
    """
    table = rows.table
    columns = (table.access_rank, table.access_buffer, table.access_offset, table.access_nbytes)
    after = np.flatnonzero(rows.moves[1:] & rows.moves[:-1] & (np.diff(table.thread) == 0)) + 1
    warm = np.zeros(table.num_rows, bool)

    def places(row: int) -> set[tuple[int, ...]]:
        first, last = table.access_start[row : row + 2]
        return set(zip(*(column[first:last].tolist() for column in columns), strict=True))

    for row in after[_touched(rows)[after] <= _CACHED].tolist():
        warm[row] = places(row) <= places(row - 1)
    return warm


def _rate(shared: Cores, name: str, in_use: Floats) -> Floats:
    """Interpolate the rate in logarithms between measured sets; beyond them it stays."""
    by_size = sorted((parse_size(text), getattr(each, name)) for text, each in shared.sets.items())
    sizes, rates = np.log(np.array(by_size)).T
    found: Floats = np.exp(np.interp(np.log(np.maximum(in_use, 1)), sizes, rates))
    return found


def _writes(rows: Rows) -> Floats:
    """Return how many copies each row costs: one for every place that it writes to.

    A copy reads, fetches what it will overwrite, and writes it back. A swap overwrites what it
    has read: four passes through memory where two copies make six.
    """
    counts = rows.num_writes.astype(np.float64)
    counts[rows.table.kind == CommandKind.SWAP] = _SWAP
    return np.maximum(counts, 1.0)


def _reducing(rows: Rows, shared: Cores) -> Floats:
    """Return the cost of sums: n reads and a write, measured for n = 2; by dtype in proportion."""
    weight = (np.diff(rows.table.access_start).astype(np.float64)) / 3
    base = shared.reduces.get("float32")
    for reduce, _, mine in rows.of_kind(Reduce):
        other = shared.reduces.get(reduce.dtype)
        if base is not None and other is not None:
            weight[mine] *= base.rate / other.rate
    return weight
