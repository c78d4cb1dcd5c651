"""Embedding bags whose pooled rows go directly into the output of the rank that needs them.

Every rank pools the whole batch on the tables it holds, slice by slice, first for the others and
then for itself. The kernel that computes a slice writes it into its destination's output, so there
is no send buffer and no exchange afterwards: a flag signals the arrival.

The output of a rank has one row per sample, with the columns of all tables. In the schedule it is
laid out in blocks, one per writing rank. Rows map one to one to blocks, so what is checked for
blocks (bounds, no two writers) holds for rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.collectives.parts import own, to_all, wait
from weft.fused.table_sharding import spread
from weft.schedule import (
    Buffer,
    Cost,
    Flag,
    Group,
    Kernel,
    Program,
    Queue,
    Repeat,
    Schedule,
    Signal,
    Slice,
)

if TYPE_CHECKING:
    from weft.fused.table_sharding import Sharding
    from weft.schedule import Command

FLOAT = 4  # bytes: pooled rows are float32
POOL, DELIVER, UPDATE = "embedding_pool", "embedding_deliver", "embedding_update"
READY, DONE, SENT = 0, 1, 2  # flags; one per slice from SENT on
SLICES = 4  # per rank


@dataclass(frozen=True, slots=True)
class EmbeddingBatch:
    """A batch of ``samples``, distributed over the ranks of a sharding, divided into slices.

    ``pooling`` is the mean number of rows per bag and ``item`` the bytes per element of a table;
    they only affect prices.
    """

    sharding: Sharding
    samples: int
    slices: int = SLICES
    pooling: float = 1.0
    item: int = FLOAT

    def of(self, rank: int) -> tuple[int, int]:
        """Return the half-open range of samples of a rank."""
        return spread(self.samples, self.sharding.num_ranks)[rank]

    def count(self, rank: int) -> int:
        """Return the number of samples of a rank."""
        first, last = self.of(rank)
        return last - first

    def slices_of(self, rank: int) -> list[tuple[int, int]]:
        """Divide the samples of a rank into slices, relative to its first sample."""
        return spread(self.count(rank), self.slices)

    def out_bytes(self, rank: int) -> int:
        """Return the size of a rank's output in bytes."""
        return self.count(rank) * self.sharding.width * FLOAT

    def block(self, source: int, rank: int) -> int:
        """Return the offset of the block of ``source`` in the output of ``rank``.

        Tables whose rows several ranks hold have their own block, the last one.
        """
        widths = map(self.sharding.width_of, range(source))
        return sum(widths) * self.count(rank) * FLOAT


def embedding_all_to_all(batch: EmbeddingBatch) -> Schedule:
    """Build the pooling of every rank's tables for all ranks, remote samples first."""
    num_ranks = batch.sharding.num_ranks
    buffers = [Buffer("out", tuple(map(batch.out_bytes, range(num_ranks))), "out")]
    if batch.sharding.joined:
        buffers.append(Buffer("partial", tuple(_partial_bytes(batch)), "scratch"))
    programs = [Program((rank,), (_forward(batch, rank),)) for rank in range(num_ranks)]
    name = f"fused embedding_all_to_all of {batch.samples} samples"
    return Schedule(name, num_ranks, tuple(programs), tuple(buffers), SENT + batch.slices)


def embedding_backward(batch: EmbeddingBatch) -> Schedule:
    """Build the update of every rank's tables by the gradients that it reads from all ranks."""
    num_ranks = batch.sharding.num_ranks
    sizes = tuple(map(batch.out_bytes, range(num_ranks)))
    programs = [Program((rank,), (_backward(batch, rank),)) for rank in range(num_ranks)]
    name = f"fused embedding_backward of {batch.samples} samples"
    return Schedule(name, num_ranks, tuple(programs), (Buffer("grad", sizes, "in"),), SENT)


def _forward(batch: EmbeddingBatch, me: int) -> Queue:
    num_ranks = batch.sharding.num_ranks
    group = Group(num_ranks)
    commands: list[Command | Repeat] = []
    if num_ranks > 1:
        commands += [to_all(group, READY), wait(READY, num_ranks - 1)]
    for step in range(1, num_ranks + 1):  # the last one is this rank itself
        peer = (me + step) % num_ranks
        for number in range(batch.slices):
            commands += _pooled(batch, me, peer, number)
            if peer != me:
                commands.append(Signal(Flag(peer, SENT + number)))
    for number in range(batch.slices):
        if num_ranks > 1:
            commands.append(wait(SENT + number, num_ranks - 1))
        commands.append(_delivered(batch, me, number))
    return Queue("stream0", tuple(commands))


def _pooled(batch: EmbeddingBatch, me: int, peer: int, number: int) -> list[Kernel]:
    """Return kernels that compute a slice of this rank's tables into the output of a peer."""
    sharding = batch.sharding
    first, last = batch.slices_of(peer)[number]
    writes = []
    width = sharding.width_of(me)
    if width:
        block = batch.block(me, peer) + first * width * FLOAT
        writes.append(Slice(peer, "out", block, (last - first) * width * FLOAT))
    if any(map(sharding.is_partial, sharding.of(me))):
        writes.append(_partial(batch, me, peer, first, last))
    return [Kernel(POOL, _cost(batch, me, last - first), (), tuple(writes))] if writes else []


def _partial(batch: EmbeddingBatch, source: int, rank: int, first: int, last: int) -> Slice:
    each = batch.sharding.joined_width * FLOAT
    start = source * batch.count(rank) + first
    return Slice(rank, "partial", start * each, (last - first) * each)


def _partial_bytes(batch: EmbeddingBatch) -> list[int]:
    ranks = range(batch.sharding.num_ranks)
    each = batch.sharding.num_ranks * batch.sharding.joined_width * FLOAT
    return [batch.count(rank) * each for rank in ranks]


def _delivered(batch: EmbeddingBatch, me: int, number: int) -> Kernel:
    """Return the kernel that sums partial results of the same tables and completes a slice."""
    sharding = batch.sharding
    if not sharding.joined:
        return Kernel(DELIVER)
    first, last = batch.slices_of(me)[number]
    holders = sorted({s.rank for s in sharding.shards if sharding.is_partial(s)})
    reads = tuple(_partial(batch, source, me, first, last) for source in holders)
    each = sharding.joined_width * FLOAT
    start = batch.block(sharding.num_ranks, me) + first * each
    write = own("out", start, (last - first) * each)
    moved = (last - first) * each * (len(reads) + 1)
    return Kernel(DELIVER, Cost("elementwise", nbytes=moved), reads, (write,))


def _backward(batch: EmbeddingBatch, me: int) -> Queue:
    sharding, num_ranks = batch.sharding, batch.sharding.num_ranks
    reads = tuple(_gradients(batch, me, rank) for rank in range(num_ranks))
    work = [Kernel(UPDATE, _cost(batch, me, batch.samples), reads)] if sharding.of(me) else []
    if num_ranks == 1:
        return Queue("stream0", tuple(work))
    others = num_ranks - 1
    begin = (to_all(Group(num_ranks), READY), wait(READY, others))
    end = (to_all(Group(num_ranks), DONE), wait(DONE, others))
    return Queue("stream0", (*begin, *work, *end))


def _gradients(batch: EmbeddingBatch, me: int, rank: int) -> Slice:
    """Return what this rank reads of another's gradients: its own block, or the common one."""
    sharding, count = batch.sharding, batch.count(rank)
    source = me if sharding.width_of(me) else sharding.num_ranks
    width = sharding.width_of(me) or sharding.joined_width
    return Slice(rank, "grad", batch.block(source, rank), count * width * FLOAT)


def _cost(batch: EmbeddingBatch, me: int, samples: int) -> Cost:
    """Return the cost of rows read and pooled rows written.

    A row-wise table reads only the rows held here. One addition per four bytes is negligible.
    """
    sharding = batch.sharding
    shards = sharding.of(me)
    share = [(s.rows[1] - s.rows[0]) / max(sharding.tables[s.table].rows, 1) for s in shards]
    rows = sum(part * s.dim for part, s in zip(share, shards, strict=True)) * batch.pooling
    written = sum(s.dim for s in shards) * FLOAT
    shape = (samples, len(shards), sum(s.dim for s in shards), round(batch.pooling))
    nbytes = round(samples * (rows * batch.item + written))
    return Cost("embedding", shape, nbytes=nbytes)
