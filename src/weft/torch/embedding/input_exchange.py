"""Exchange of the bags of own samples: each goes to the ranks that hold its tables."""

import torch
from torch import Tensor

from weft.errors import DisagreeError
from weft.fused import Sharding
from weft.torch.backend.channel import Channel
from weft.torch.embedding.bag_inputs import Bags


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
        channel.exchange(outs, [_joined(part, values) for part in parts], async_op=False)
        cut = [torch.split(out, each.sum(1).tolist()) for out, each in zip(outs, came, strict=True)]
        return _joined([part[t] for t in range(len(mine)) for part in cut], values)

    ordered = torch.cat(came, 1).reshape(-1)
    offsets = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    weights = None if bags.weights is None else moved(bags.weights)
    return Bags(moved(bags.indices), offsets, weights, samples * num_ranks)


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
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
