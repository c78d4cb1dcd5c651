"""Lookup and exchange of an embedding between hosts: slices are sent while others are pooled."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import accumulate, product
from typing import NamedTuple

import torch
from torch import Tensor

from weft._core import Pooling
from weft.fused import EmbeddingBatch, TableShard
from weft.fused.embedding_all_to_all import FLOAT
from weft.torch.embedding.bag_inputs import RankLookups
from weft.torch.embedding.row_gradients import GradientTarget
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import InterHostSession, wait_for
from weft.torch.hosts.multi_host_channel import MultiHostChannel


class IncomingSlice(NamedTuple):
    """A slice of another rank that is in flight."""

    source: int
    number: int
    block: Tensor
    transfers: list[Transfer]


class ShardColumns:
    """The columns of a rank's shards, in a row of the output and in the blocks that it sends.

    Row-wise sharded tables follow the others, as partial sums.
    """

    def __init__(self, batch: EmbeddingBatch, rank: int) -> None:
        sharding = batch.sharding
        mine = sharding.of(rank)
        self.shards = [*filter(lambda s: not sharding.is_partial(s), mine)]
        self.partial = [*filter(sharding.is_partial, mine)]
        self._starts = sharding.starts
        self.width = sum(shard.dim for shard in mine)

    def start(self, shard: TableShard) -> int:
        """Return the first column of a shard in the output."""
        return self._starts[shard.table] + shard.columns[0]

    def pairs(self, shards: list[TableShard], at: int = 0) -> list[tuple[slice, slice]]:
        """Return the columns of shards in the output and, from ``at`` on, in a block.

        Columns that are adjacent in both become one slice.
        """
        found: list[tuple[slice, slice]] = []
        for shard in shards:
            start = self.start(shard)
            if found and found[-1][0].stop == start:
                to, there = found.pop()
                found.append(
                    (slice(to.start, start + shard.dim), slice(there.start, at + shard.dim))
                )
            else:
                found.append((slice(start, start + shard.dim), slice(at, at + shard.dim)))
            at += shard.dim
        return found

    @cached_property
    def direct(self) -> list[tuple[slice, slice]]:
        """The columns that are complete on arrival."""
        return self.pairs(self.shards)

    @property
    def in_rows(self) -> dict[TableShard, int]:
        """The first columns, in the output, of shards that are complete on arrival."""
        return {shard: self.start(shard) for shard in self.shards}

    @property
    def in_blocks(self) -> dict[TableShard, int]:
        """The first columns of all shards in a sent block."""
        order = self.shards + self.partial
        starts = accumulate((shard.dim for shard in order), initial=0)
        return dict(zip(order, starts, strict=False))

    @cached_property
    def joined(self) -> list[tuple[slice, slice]]:
        """The columns that are added to those of other ranks."""
        return self.pairs(self.partial, sum(shard.dim for shard in self.shards))


class MultiHostExchange:
    """The counterpart of IntraHostExchange for ranks on several hosts."""

    def __init__(self, channel: MultiHostChannel, batch: EmbeddingBatch) -> None:
        self.batch = batch
        self._channel, self._rank = channel, channel.rank
        self._num_ranks = batch.sharding.num_ranks
        self._columns = [ShardColumns(batch, rank) for rank in range(self._num_ranks)]
        mine = self._columns[self._rank]
        self._in_rows, self._in_blocks = mine.in_rows, mine.in_blocks
        self._kept, self._sent, self._returning = (Pooling(mine.width, 0) for _ in range(3))

    def set(self, lookups: RankLookups) -> None:
        """Set the next lookups."""
        _set(self._kept, lookups, self._in_rows)
        _set(self._sent, lookups, self._in_blocks)

    def run(self, call: str) -> Tensor:
        """Pool for all ranks; return this rank's rows."""
        out = torch.empty(self.batch.count(self._rank), self.batch.sharding.width)
        for columns in self._columns:
            for to, _ in columns.joined:
                out[:, to] = 0
        self._channel.run_between_hosts(self._forward, out, call)
        return out

    def stream(self, call: str) -> Iterator[tuple[int, Tensor]]:
        """Yield slices of this rank's rows; between hosts all of them are complete first."""
        out = self.run(call)
        for first, last in self.batch.slices_of(self._rank):
            yield first, out[first:last]

    def sort(self, lookups: RankLookups) -> list[int]:
        """Set the lookups of the next backward pass; return the number of rows of each shard."""
        _set(self._returning, lookups, self._in_blocks)
        return self._returning.sort()

    def send_gradients(self, gradients: Tensor, results: list[GradientTarget], call: str) -> None:
        """Send gradients to the holders of their tables, and update the rows held here."""
        self._returning.set_results(results)
        here = torch.empty(self.batch.samples, self._columns[self._rank].width)
        self._channel.run_between_hosts(self._backward, gradients, here, call)
        if here.numel():
            self._returning.change(here.data_ptr(), self.batch.samples)

    def close(self) -> None:
        """Do nothing: no memory is kept between calls."""

    def _peers(self) -> Iterator[int]:
        for step in range(1, self._num_ranks):
            yield (self._rank + step) % self._num_ranks

    def _forward(self, topology: HostTopology, out: Tensor, call: str) -> None:
        """Send the first slice before anything else, because the network is the bottleneck.

        Received slices are copied into rows while the next ones are in flight; only partial sums
        wait for each other.
        """
        with topology.session(call, 0) as session:
            buffers = self._buffers(topology)
            incoming: list[IncomingSlice] = []
            with topology.transport.background_scheduling():
                for peer, number in product(self._peers(), range(self.batch.slices)):
                    block = self._pooled(peer, number, buffers)
                    session.send(block, peer)
                    incoming = incoming or self._all_awaited(session, buffers)
                incoming = incoming or self._all_awaited(session, buffers)
                partial = dict(self._own(out, buffers))
            for each in incoming:
                wait_for(each.transfers)
                self._put(out, each.source, each.number, each.block)
                partial[each.source, each.number] = each.block
            self._add_up(out, partial)

    def _buffers(self, topology: HostTopology) -> Iterator[Tensor]:
        """Return slots for all slices in transit; their memory is reused by every call."""
        widest = max(columns.width for columns in self._columns)
        most = max(
            last - first
            for rank in range(self._num_ranks)
            for first, last in self.batch.slices_of(rank)
        )
        count = (2 * self._num_ranks - 1) * self.batch.slices
        slots = topology.slots(count, max(most * widest * FLOAT, 1))
        return iter(torch.from_numpy(slots))

    def _block(self, rank: int, number: int, holder: int, buffers: Iterator[Tensor]) -> Tensor:
        """Return the block of a slice of a rank's samples, for the columns of a holder."""
        first, last = self.batch.slices_of(rank)[number]
        width = self._columns[holder].width
        buffer = next(buffers)[: (last - first) * width * FLOAT]
        return buffer.view(torch.float32).view(last - first, width)

    def _all_awaited(
        self, session: InterHostSession, buffers: Iterator[Tensor]
    ) -> list[IncomingSlice]:
        return [
            IncomingSlice(source, number, block, session.recv(block, source))
            for source, number in product(self._peers(), range(self.batch.slices))
            for block in [self._block(self._rank, number, source, buffers)]
        ]

    def _pooled(self, peer: int, number: int, buffers: Iterator[Tensor]) -> Tensor:
        """Pool a slice of a peer's samples into a block with this rank's columns."""
        block = self._block(peer, number, self._rank, buffers)
        first, last = self.batch.slices_of(peer)[number]
        start = self.batch.of(peer)[0]
        self._sent.pool_rows(start + first, start + last, block.data_ptr(), block.shape[1])
        return block

    def _own(
        self, out: Tensor, buffers: Iterator[Tensor]
    ) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Pool this rank's own samples directly into their rows; yield partial sums."""
        me = self._rank
        self._kept.pool_rows(*self.batch.of(me), out.data_ptr(), out.shape[1])
        if self._columns[me].partial:
            for number in range(self.batch.slices):
                yield (me, number), self._pooled(me, number, buffers)

    def _put(self, out: Tensor, source: int, number: int, block: Tensor) -> None:
        """Copy the complete columns of a slice into its rows."""
        rows = out[slice(*self.batch.slices_of(self._rank)[number])]
        for to, at in self._columns[source].direct:
            rows[:, to] = block[:, at]

    def _add_up(self, out: Tensor, blocks: dict[tuple[int, int], Tensor]) -> None:
        """Add partial sums in the order of ranks."""
        slices = self.batch.slices_of(self._rank)
        for source, number in sorted(blocks):
            rows, block = out[slice(*slices[number])], blocks[source, number]
            for to, at in self._columns[source].joined:
                rows[:, to] += block[:, at]

    def _backward(self, topology: HostTopology, gradients: Tensor, here: Tensor, call: str) -> None:
        with topology.session(call, 0) as session:
            rows = [here[slice(*self.batch.of(rank))] for rank in range(self._num_ranks)]
            incoming = [t for peer in self._peers() for t in session.recv(rows[peer], peer)]
            sent = []  # kept alive until the session ends
            for peer in self._peers():
                sent.append(self._wanted(gradients, peer))
                session.send(sent[-1], peer)
            rows[self._rank].copy_(self._wanted(gradients, self._rank))
            for transfer in incoming:
                transfer.wait()

    def _wanted(self, gradients: Tensor, holder: int) -> Tensor:
        """Return the gradients of the columns that a rank holds, in its order."""
        columns = self._columns[holder]
        parts = [gradients[:, to] for to, _ in (*columns.direct, *columns.joined)]
        return torch.cat(parts, 1) if parts else gradients[:, :0]


def _set(pooling: Pooling, lookups: RankLookups, columns: Mapping[TableShard, int]) -> None:
    """Set the lookups of the shards that have a column."""
    given = zip(lookups.shards, lookups.memory, lookups.bags, strict=True)
    chosen = [(memory, (columns[s], False, 0), bags) for s, memory, bags in given if s in columns]
    memory, where, bags = zip(*chosen, strict=True) if chosen else ((), (), ())
    pooling.set(memory, where, bags, lookups.mean)
