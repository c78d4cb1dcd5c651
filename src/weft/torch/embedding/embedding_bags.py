"""Unfused embedding bags: nn.EmbeddingBag, then an all-to-all."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.errors import UsageError
from weft.fused import shard, table_wise
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.embedding.embedding_module import EmbeddingAllToAll
from weft.torch.embedding.row_gradients import RowOptimizer, RowwiseAdagrad
from weft.torch.embedding.table_storage import TableInput, sources_of


class EmbeddingBags(nn.Module):
    """Tables that ranks share, each whole on one rank: nn.EmbeddingBag, then an all-to-all.

    Inputs and outputs are those of EmbeddingAllToAll with ``inputs="tables"``, over any backend of
    torch.distributed: the bags of the whole batch for the tables of this rank, and the pooled rows
    of its samples, (samples, all columns). ``holders`` are the ranks of the tables, in rising
    order; by default each has the same number. With ``optimizer`` the backward pass updates the
    rows it uses. ``fused()`` returns an EmbeddingAllToAll with the same values.
    """

    def __init__(
        self,
        tables: Mapping[str, TableInput] | Sequence[TableInput],
        *,
        holders: Sequence[int] | None = None,
        optimizer: RowOptimizer | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.group, self.optimizer = group, optimizer
        rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
        sources = sources_of(tables)
        named = [source.table for source in sources]
        self.sharding = shard(named, _placed(len(named), holders, num_ranks), num_ranks)
        self._widths = [self.sharding.width_of(each) for each in range(num_ranks)]
        self._rank = rank
        self._all_hold = all(self.sharding.of(each) for each in range(num_ranks))
        self._sums: dict[str, Tensor] = {}  # of RowwiseAdagrad
        self.bags = nn.ModuleDict()
        for held in self.sharding.of(rank):
            table, values = named[held.table], sources[held.table].values
            self.bags[table.name] = bag = nn.EmbeddingBag(
                table.rows, table.dim, mode="sum", include_last_offset=True, sparse=True
            )
            if values is not None:
                bag.weight.data.copy_(values)
            if isinstance(optimizer, RowwiseAdagrad):
                self._sums[table.name] = torch.zeros(table.rows)
            if optimizer is not None:
                _update_in_backward(bag.weight, optimizer, self._sums.get(table.name))

    def forward(self, indices: Sequence[Tensor], offsets: Sequence[Tensor]) -> Tensor:
        """Return the pooled rows of this rank's samples: (samples, all columns)."""
        bags = zip(self.bags.values(), indices, offsets, strict=True)
        pooled = [bag(rows, borders) for bag, rows, borders in bags]
        joined = torch.cat(pooled, 1) if pooled else torch.zeros(0, 0)
        if not self._all_hold:
            joined = self._as_long_as_others(joined)
        rows: Tensor = _AllToAllRows.apply(
            joined, ColumnParts(self._widths, self._rank), self.group
        )  # type: ignore[no-untyped-call]
        return rows

    def fused(self) -> EmbeddingAllToAll:
        """Return an EmbeddingAllToAll with the same values and optimizer."""
        tables: dict[str, TableInput] = {t.name: (t.rows, t.dim) for t in self.sharding.tables}
        tables |= {name: bag.weight for name, bag in self._held()}
        where = [table_wise(each.rank) for each in self.sharding.shards]
        made = EmbeddingAllToAll(
            tables,
            sharding=where,
            optimizer=self.optimizer,
            sparse=self.optimizer is None,
            group=self.group,
        )
        self.give_values(made)
        return made

    def give_values(self, fused: EmbeddingAllToAll) -> None:
        """Copy the current values to a module of ``fused()``."""
        with torch.no_grad():
            for theirs, mine in self._shared_with(fused):
                theirs.copy_(mine)

    def take_values(self, fused: EmbeddingAllToAll) -> None:
        """Copy the values of a module of ``fused()`` back."""
        with torch.no_grad():
            for theirs, mine in self._shared_with(fused):
                mine.copy_(theirs)

    def _shared_with(self, fused: EmbeddingAllToAll) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of what training changes: tables, and the sums of Adagrad."""
        for name, bag in self._held():
            yield fused.weights[name], bag.weight
        for name, sums in self._sums.items():
            yield fused.get_buffer(f"adagrad_{name}"), sums

    def _as_long_as_others(self, joined: Tensor) -> Tensor:
        """Return the batch size of the other ranks: a rank that holds no table does not know it."""
        samples = torch.tensor([joined.shape[0]])
        dist.all_reduce(samples, dist.ReduceOp.MAX, group=self.group)
        if self.bags:
            return joined
        return torch.zeros(int(samples), 0, requires_grad=True)  # so that backward is called

    def _held(self) -> list[tuple[str, nn.EmbeddingBag]]:
        return [(name, bag) for name, bag in self.bags.items() if isinstance(bag, nn.EmbeddingBag)]


class ColumnParts(NamedTuple):
    """The columns that each rank's tables have, and which rank this is."""

    widths: list[int]
    rank: int

    def lengths(self, samples: int) -> tuple[list[int], list[int]]:
        """Return the elements of every rank's rows of some samples, and of own rows for each."""
        return [samples * w for w in self.widths], [samples * self.widths[self.rank]] * len(
            self.widths
        )


class _AllToAllRows(torch.autograd.Function):
    """All-to-all from all samples of own tables to own samples of all tables."""

    @staticmethod
    def forward(ctx: Any, pooled: Tensor, parts: ColumnParts, group: ProcessGroup | None) -> Tensor:
        samples = pooled.shape[0] // len(parts.widths)
        ctx.samples, ctx.parts, ctx.group = samples, parts, group
        theirs, mine = parts.lengths(samples)
        came = _all_to_all(pooled.flatten(), theirs, mine, group)
        blocks = zip(torch.split(came, theirs), parts.widths, strict=True)
        return torch.cat([block.view(samples, width) for block, width in blocks], 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        parts = ctx.parts
        theirs, mine = parts.lengths(ctx.samples)
        sent = torch.cat([block.flatten() for block in torch.split(grads[0], parts.widths, 1)])
        came = _all_to_all(sent, mine, theirs, ctx.group)
        rows = ctx.samples * len(parts.widths)
        return came.view(rows, parts.widths[parts.rank]), None, None


def _all_to_all(
    x: Tensor, taken: list[int], given: list[int], group: ProcessGroup | None
) -> Tensor:
    out = x.new_empty(sum(taken))
    if len({*taken, *given}) == 1:
        dist.all_to_all_single(out, x, group=group)
    else:
        dist.all_to_all_single(out, x, taken, given, group=group)
    return out


def _placed(count: int, holders: Sequence[int] | None, num_ranks: int) -> list[Any]:
    """Return the placement of every table; the columns of a rank must be adjacent in a row."""
    ranks = list(holders) if holders is not None else [n * num_ranks // count for n in range(count)]
    if len(ranks) != count or ranks != sorted(ranks):
        raise UsageError(
            f"holders: expected {count} ranks in rising order (got {ranks}).",
            "Pass one rank for each table.",
        )
    return [table_wise(rank) for rank in ranks]


def _update_in_backward(weight: Tensor, rule: RowOptimizer, sums: Tensor | None) -> None:
    """Update the rows that have a gradient as soon as it is computed, then drop it."""

    def update(parameter: Tensor) -> None:
        grad = parameter.grad
        assert grad is not None
        with torch.no_grad():
            parameter.add_(grad if sums is None else _scaled(grad, sums, rule), alpha=-rule.lr)
        parameter.grad = None

    weight.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]


def _scaled(grad: Tensor, sums: Tensor, rule: Any) -> Tensor:
    """Divide each row's gradient by the root of its sum of squares."""
    joined = grad.coalesce()
    rows, values = joined.indices()[0], joined.values()
    sums[rows] += values.square().mean(1)
    scaled = values / (sums[rows].sqrt() + rule.eps).unsqueeze(1)
    return torch.sparse_coo_tensor(joined.indices(), scaled, joined.shape)
