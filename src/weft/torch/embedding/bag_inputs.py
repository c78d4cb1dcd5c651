"""Bags of indices in the forms that a user may pass, converted to one flat form and exchanged."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.errors import DisagreeError, UsageError
from weft.fused import Sharding, TableShard
from weft.torch.backend.channel import Channel

_INTEGERS = (torch.int64, torch.int32)
# Of the native core: a shard (table, address, rows, columns), and the bags of one table.
ShardMemory = tuple[str, int, int, int, int, int, int]
BagAddresses = tuple[int, int, int, int, int, bool, bool]


class Bags(NamedTuple):
    """The bags of some tables: of each table ``samples`` bags, table after table.

    ``offsets`` has their samples * tables + 1 boundaries, from the start of ``indices``. Tables
    that are passed one by one stay separate: ``each`` has the indices and offsets of every one.
    """

    indices: Tensor
    offsets: Tensor
    weights: Tensor | None
    samples: int
    each: tuple[tuple[Tensor, Tensor], ...] = ()

    def addresses(self, table: int) -> BagAddresses:
        """Return one table's bags in the form of the native core."""
        if self.each:
            return _addresses(*self.each[table], 0, self.samples, None)
        return _addresses(self.indices, self.offsets, table, self.samples, self.weights)

    def of_table(self, table: int) -> tuple[Tensor, Tensor]:
        """Return indices and boundaries of one table's bags, both in int64."""
        if self.each:
            indices, offsets = self.each[table]
        else:
            first = table * self.samples
            indices, offsets = self.indices, self.offsets[first : first + self.samples + 1]
        return indices.long(), offsets.long().contiguous()

    def require_on(self, device: torch.device) -> "Bags":
        """Raise unless all tensors are on the device of the tables."""
        pairs = self.each or ((self.indices, self.offsets),)
        for name, tensor in (
            pair for each in pairs for pair in zip(("indices", "offsets"), each, strict=True)
        ):
            if tensor.numel() and tensor.device.type != device.type:
                raise UsageError(
                    f"{name}: expected int64 or int32 on {device.type} (got {tensor.dtype} on "
                    f"{tensor.device})."
                )
        return self

    def flat(self) -> "Bags":
        """Return the bags with the indices of all tables in one tensor."""
        return _joined(self.each, None, self.samples) if self.each else self


def _addresses(
    indices: Tensor, offsets: Tensor, table: int, samples: int, weights: Tensor | None
) -> BagAddresses:
    start = offsets.data_ptr() + table * samples * offsets.element_size()
    given = 0 if weights is None else weights.data_ptr()
    return (
        *(indices.data_ptr(), start, given, indices.numel(), samples),
        *(indices.dtype is torch.int64, offsets.dtype is torch.int64),
    )


Tensors = Tensor | Sequence[Tensor]


def bags_of(
    indices: Tensors, offsets: Tensors | None, weights: Tensors | None, num_tables: int
) -> Bags:
    """Return the bags of ``num_tables`` tables in one form.

    ``indices`` is flat, with the borders of all bags in ``offsets``; or (tables, samples, rows of
    a bag) without offsets; or a list of either, one entry a table.
    """
    if isinstance(indices, Tensor):
        return _of_all(indices, offsets, _weights(weights), num_tables)
    if len(indices) != num_tables:
        raise UsageError(
            f"indices: expected a tensor for each of {num_tables} tables (got {len(indices)})."
        )
    return _of_each(indices, offsets, weights)


def _of_all(
    indices: Tensor, offsets: Tensors | None, weights: Tensor | None, num_tables: int
) -> Bags:
    if offsets is None:
        return _of_equal(indices, weights, num_tables)
    if not isinstance(offsets, Tensor) or indices.dim() != 1 or offsets.dim() != 1:
        raise UsageError("offsets: expected one 1-D tensor of indices and one of offsets.")
    samples, rest = divmod(offsets.numel() - 1, max(num_tables, 1))
    if rest or samples < 0:
        raise UsageError(
            f"offsets: expected samples * {num_tables} tables + 1 (got {offsets.numel()}).",
            "Pass the start of each bag, and the end of the last one.",
        )
    return _checked(Bags(indices.contiguous(), offsets.contiguous(), weights, samples))


def _of_equal(indices: Tensor, weights: Tensor | None, num_tables: int) -> Bags:
    if indices.dim() == 2 and num_tables == 1:
        indices = indices.unsqueeze(0)
    if indices.dim() != 3 or indices.shape[0] != num_tables:
        raise UsageError(
            f"offsets: missing for indices of shape {tuple(indices.shape)}.",
            f"Pass offsets, or indices of shape ({num_tables}, samples, rows of a bag).",
        )
    tables, samples, rows = indices.shape
    last, where = tables * samples * rows, indices.device
    borders = torch.arange(0, last + 1, rows, device=where) if rows else None
    if borders is None:
        borders = torch.zeros(tables * samples + 1, dtype=torch.int64, device=where)
    flat = None if weights is None else weights.reshape(-1)
    return _checked(Bags(indices.reshape(-1).contiguous(), borders, flat, samples))


def _of_each(indices: Sequence[Tensor], offsets: Tensors | None, weights: Tensors | None) -> Bags:
    """Read bags table by table; offsets may lack the end, as those of nn.EmbeddingBag."""
    if offsets is None:
        found = [_of_equal(flat, None, 1) for flat in indices]
    else:
        if len(offsets) != len(indices):
            raise UsageError(
                f"offsets: expected {len(indices)} tensors as of indices (got {len(offsets)})."
            )
        pairs = list(zip(indices, offsets, strict=True))
        # All lack the end or none do: the last bag of a table may be empty and start at its end.
        lack = any(not len(o) or int(o[-1]) != flat.numel() for flat, o in pairs)
        found = [
            _of_all(flat, torch.cat([o, o.new_tensor([flat.numel()])]) if lack else o, None, 1)
            for flat, o in pairs
        ]
    each = [(one.indices, one.offsets) for one in found]
    samples = {borders.numel() - 1 for _, borders in each}
    if len(samples) > 1:
        raise UsageError(
            f"offsets: batch sizes of the tables differ ({', '.join(map(str, sorted(samples)))})."
        )
    none = torch.zeros(0, dtype=torch.int64)
    if not each:
        return Bags(none, torch.zeros(1, dtype=torch.int64), None, 0)
    if weights is not None:
        return _joined(each, _weights(weights), samples.pop())
    return Bags(none, none, None, samples.pop(), tuple(each))


def _joined(each: Sequence[tuple[Tensor, Tensor]], weights: Tensor | None, samples: int) -> Bags:
    borders, start = [], 0
    for indices, offsets in each:
        borders.append(offsets[:-1] + start)
        start += indices.numel()
    end = borders[0].new_tensor([start])
    flat = torch.cat([indices for indices, _ in each])
    return _checked(Bags(flat, torch.cat([*borders, end]), weights, samples))


def _weights(weights: Tensors | None) -> Tensor | None:
    if weights is None or isinstance(weights, Tensor):
        return weights
    return torch.cat([each.reshape(-1) for each in weights])


def _checked(bags: Bags) -> Bags:
    """Check dtypes and sizes; the native core checks the values."""
    for name, tensor in (("indices", bags.indices), ("offsets", bags.offsets)):
        if tensor.dtype not in _INTEGERS:
            raise UsageError(
                f"{name}: expected int64 or int32 (got {tensor.dtype} on {tensor.device})."
            )
    weights = bags.weights
    if weights is None:
        return bags
    if weights.numel() != bags.indices.numel() or weights.dtype is not torch.float32:
        raise UsageError(
            f"per_sample_weights: expected {bags.indices.numel()} of float32 (got "
            f"{weights.numel()} of {weights.dtype}).",
            "Pass one weight for each index.",
        )
    return bags._replace(weights=weights.contiguous())


class RankLookups(NamedTuple):
    """Shards with their memory, columns and bags, in the form of the native core."""

    shards: tuple[TableShard, ...]
    memory: list[ShardMemory]
    where: list[tuple[int, bool, int]]
    bags: list[BagAddresses]
    mean: bool


def exchange_inputs(channel: Channel, sharding: Sharding, bags: Bags) -> Bags:
    """Return the bags of the whole batch for the tables held here, samples of rank 0 first.

    Lengths are exchanged before indices, so that every rank knows the sizes. All ranks have the
    same number of samples.
    """
    num_ranks, samples = sharding.num_ranks, bags.samples
    _require_equal(channel, num_ranks, samples)
    lengths = bags.offsets.diff().to(torch.int64).view(len(sharding.tables), samples)
    starts = bags.offsets[:: max(samples, 1)].tolist() if samples else [0] * len(sharding.tables)
    held = [[shard.table for shard in sharding.of(rank)] for rank in range(num_ranks)]
    mine = held[channel.rank]
    sent = [lengths[tables].contiguous() for tables in held]
    came = [torch.empty(len(mine), samples, dtype=torch.int64) for _ in range(num_ranks)]
    channel.exchange(came, sent, async_op=False)
    ends = [*starts[1:], int(bags.offsets[-1])] if samples else starts

    def moved(values: Tensor) -> Tensor:
        """Exchange a value per index; return the received ones in the order of tables."""
        parts = [[values[starts[t] : ends[t]] for t in tables] for tables in held]
        outs = [torch.empty(int(each.sum()), dtype=values.dtype) for each in came]
        channel.exchange(outs, [_concatenated(part, values) for part in parts], async_op=False)
        cut = [torch.split(out, each.sum(1).tolist()) for out, each in zip(outs, came, strict=True)]
        return _concatenated([part[t] for t in range(len(mine)) for part in cut], values)

    ordered = torch.cat(came, 1).reshape(-1)
    offsets = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    weights = None if bags.weights is None else moved(bags.weights)
    return Bags(moved(bags.indices), offsets, weights, samples * num_ranks)


def _concatenated(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(parts) if parts else like.new_empty(0)


def _require_equal(channel: Channel, num_ranks: int, samples: int) -> None:
    counts = torch.empty(num_ranks, dtype=torch.int64)
    channel.all_gather(counts, torch.tensor([samples]), async_op=False)
    if len(set(counts.tolist())) > 1:
        raise DisagreeError(
            f"indices: numbers of samples differ between ranks "
            f"({', '.join(map(str, counts.tolist()))}).",
            "Pass the same number on every rank with inputs='samples'.",
        )
