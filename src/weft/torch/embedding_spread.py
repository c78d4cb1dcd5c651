"""An embedding over ranks of several hosts: slices go out by the wire while others are pooled."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from weft._core import Pooling, pool_into
from weft.fused import Batch, Shard
from weft.torch.embedding_lookups import Lookups, Result
from weft.torch.place import Place
from weft.torch.spread import SpreadChannel
from weft.torch.talk import Talk
from weft.torch.wire import Transfer


class Coming(NamedTuple):
    """A slice of another rank that is on its way."""

    source: int
    number: int
    block: Tensor
    transfers: list[Transfer]


class Columns:
    """Where the columns of a rank's shards stand: in a row of the output, and in what it sends.

    Tables that several ranks hold rows of come behind the others, as partial sums.
    """

    def __init__(self, batch: Batch, rank: int) -> None:
        sharding = batch.sharding
        mine = sharding.of(rank)
        self.shards = [*filter(lambda s: not sharding.is_partial(s), mine)]
        self.partial = [*filter(sharding.is_partial, mine)]
        self._starts = sharding.starts
        self.width = sum(shard.dim for shard in mine)

    def pairs(self, shards: list[Shard], at: int = 0) -> Iterator[tuple[slice, slice]]:
        """Give the columns of shards in the output and, from ``at`` on, in a block."""
        for shard in shards:
            start = self._starts[shard.table] + shard.columns[0]
            yield slice(start, start + shard.dim), slice(at, at + shard.dim)
            at += shard.dim

    @property
    def direct(self) -> list[tuple[slice, slice]]:
        """The columns that are complete as they come."""
        return list(self.pairs(self.shards))

    @property
    def joined(self) -> list[tuple[slice, slice]]:
        """The columns that are to be added to those of others."""
        return list(self.pairs(self.partial, sum(shard.dim for shard in self.shards)))


class SpreadExchange:
    """What Exchange does inside a host, between hosts: slice by slice, in the order of need."""

    def __init__(self, channel: SpreadChannel, batch: Batch) -> None:
        self.batch = batch
        self._channel, self._rank = channel, channel.rank
        self._num_ranks = batch.sharding.num_ranks
        self._columns = [Columns(batch, rank) for rank in range(self._num_ranks)]
        self._lookups: Lookups | None = None
        self._order = self._columns[self._rank].shards + self._columns[self._rank].partial
        self._returning = Pooling(self._columns[self._rank].width, 0)

    def set(self, lookups: Lookups) -> None:
        """Say what is looked up next."""
        self._lookups = lookups

    def run(self, call: str) -> Tensor:
        """Pool for all ranks; give this rank's rows."""
        out = torch.zeros(self.batch.count(self._rank), self.batch.sharding.width)
        self._channel.carry_out(self._forward, out, call)
        return out

    def stream(self, call: str) -> Iterator[tuple[int, Tensor]]:
        """Give slices of this rank's rows; between hosts all of them are waited for."""
        out = self.run(call)
        for first, last in self.batch.slices_of(self._rank):
            yield first, out[first:last]

    def sort(self, lookups: Lookups) -> list[int]:
        """Say whose gradients come next; give how many rows of each shard are asked for."""
        where, at = {}, 0
        for shard in self._order:
            where[shard] = (at, False, 0)
            at += shard.dim
        placed = [where[shard] for shard in lookups.shards]
        self._returning.set(lookups.memory, placed, lookups.bags, lookups.mean)
        return self._returning.sort()

    def bring_back(self, gradients: Tensor, results: list[Result], call: str) -> None:
        """Send gradients to whoever holds their tables, and change those held here."""
        self._returning.set_results(results)
        here = torch.empty(self.batch.samples, self._columns[self._rank].width)
        self._channel.carry_out(self._backward, gradients, here, call)
        if here.numel():
            self._returning.change(here.data_ptr(), self.batch.samples)

    def close(self) -> None:
        """Nothing is kept between calls."""

    def _peers(self) -> Iterator[int]:
        for step in range(1, self._num_ranks):
            yield (self._rank + step) % self._num_ranks

    def _forward(self, place: Place, out: Tensor, call: str) -> None:
        with place.talk(call, 0) as talk:
            coming = [c for peer in self._peers() for c in self._awaited(talk, peer)]
            sent = []  # kept until the talk ends
            for peer in self._peers():
                for number in range(self.batch.slices):
                    sent.append(self._pooled(peer, number))
                    talk.send(sent[-1], peer)
            blocks = {
                (self._rank, n): self._pooled(self._rank, n) for n in range(self.batch.slices)
            }
            for each in coming:
                for transfer in each.transfers:
                    transfer.wait()
                blocks[each.source, each.number] = each.block
            self._put_together(out, blocks)

    def _awaited(self, talk: Talk, source: int) -> Iterator[Coming]:
        width = self._columns[source].width
        for number, (first, last) in enumerate(self.batch.slices_of(self._rank)):
            block = torch.empty(last - first, width)
            yield Coming(source, number, block, talk.recv(block, source))

    def _pooled(self, peer: int, number: int) -> Tensor:
        """Pool a slice of a peer's samples, a row each, this rank's shards side by side."""
        assert self._lookups is not None
        first, last = self.batch.slices_of(peer)[number]
        start = self.batch.of(peer)[0]
        block = torch.empty(last - first, self._columns[self._rank].width)
        at = block.data_ptr()
        for shard in self._order:
            memory, bags = self._lookups.of(shard)
            samples = (start + first, start + last)
            pool_into(memory, bags, self._lookups.mean, *samples, at, block.shape[1])
            at += 4 * shard.dim
        return block

    def _put_together(self, out: Tensor, blocks: dict[tuple[int, int], Tensor]) -> None:
        """Write blocks into rows; what is partial is added up in the order of ranks."""
        slices = self.batch.slices_of(self._rank)
        for source, number in sorted(blocks):
            rows, block = out[slice(*slices[number])], blocks[source, number]
            for to, at in self._columns[source].direct:
                rows[:, to] = block[:, at]
            for to, at in self._columns[source].joined:
                rows[:, to] += block[:, at]

    def _backward(self, place: Place, gradients: Tensor, here: Tensor, call: str) -> None:
        with place.talk(call, 0) as talk:
            rows = [here[slice(*self.batch.of(rank))] for rank in range(self._num_ranks)]
            coming = [t for peer in self._peers() for t in talk.recv(rows[peer], peer)]
            sent = []  # kept until the talk ends
            for peer in self._peers():
                sent.append(self._wanted(gradients, peer))
                talk.send(sent[-1], peer)
            rows[self._rank].copy_(self._wanted(gradients, self._rank))
            for transfer in coming:
                transfer.wait()

    def _wanted(self, gradients: Tensor, holder: int) -> Tensor:
        """Give the columns of what a rank holds, in the order in which it keeps them."""
        columns = self._columns[holder]
        parts = [gradients[:, to] for to, _ in (*columns.direct, *columns.joined)]
        return torch.cat(parts, 1) if parts else gradients[:, :0]
