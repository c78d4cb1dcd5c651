"""Embedding tables over the ranks of a group, pooled straight into the ranks that want them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.errors import BagError, UsageError
from weft.fused import EmbeddingBatch, TableShard, shard
from weft.fused.embedding_all_to_all import SLICES
from weft.fused.table_sharding import Placements
from weft.timeline import Timeline
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.group_functions import weft_group
from weft.torch.embedding.bag_inputs import Bags, Tensors, bags_of
from weft.torch.embedding.input_exchange import exchange_inputs
from weft.torch.embedding.intra_host_exchange import HeapTensors, IntraHostExchange
from weft.torch.embedding.multi_host_exchange import MultiHostExchange
from weft.torch.embedding.rank_lookups import RankLookups, ShardMemory
from weft.torch.embedding.row_gradients import GradientRequest, allocate_gradients
from weft.torch.embedding.row_optimizers import RowOptimizer, RowwiseAdagrad
from weft.torch.embedding.table_storage import ELEMENTS, TableInput, allocate_shard, sources_of
from weft.torch.hosts.multi_host_channel import MultiHostChannel

_KEPT = 8  # batch sizes for which memory is kept; the last batch of an epoch is one more


class StreamedRows(NamedTuple):
    """Some of this rank's samples, from number ``first`` on, and their rows."""

    first: int
    rows: Tensor


class EmbeddingAllToAll(nn.Module):
    """Embedding bags of tables that the ranks of a weft group share; every rank gets its samples.

    ``tables`` are (rows, dim), tensors or nn.EmbeddingBag by name. ``sharding`` is "table-wise",
    "row-wise", "column-wise", or one of weft.fused's placements for each table. ``inputs`` says
    what every rank passes: "tables", the bags of the whole batch for the tables it holds (in
    their order), or "samples", the bags of its own samples for all tables.

    The result has a row for each sample of this rank and the columns of all tables. With
    ``optimizer`` the backward pass changes the rows it reaches; without it parameters get
    gradients, ``sparse`` ones or dense. All ranks call it together.
    """

    def __init__(
        self,
        tables: Mapping[str, TableInput] | Sequence[TableInput],
        *,
        sharding: Placements = "table-wise",
        pooling: str = "sum",
        inputs: str = "tables",
        optimizer: RowOptimizer | None = None,
        sparse: bool = False,
        slices: int = SLICES,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        _require_one_of("pooling", pooling, ("sum", "mean"))
        _require_one_of("inputs", inputs, ("tables", "samples"))
        sources = sources_of(tables)
        self._channel = weft_group(group).channel
        self._group, self._rank = group, self._channel.rank
        self.num_ranks = dist.get_world_size(group)
        self.sharding = shard([source.table for source in sources], sharding, self.num_ranks)
        self.pooling, self.inputs, self.sparse, self._slices = pooling, inputs, sparse, slices
        self.optimizer = optimizer
        self._mine: tuple[TableShard, ...] = self.sharding.of(self._rank)
        trains = sources[0].dtype is not torch.uint8 and optimizer is None
        self.weights = nn.ParameterDict()
        for each in self._mine:
            source = sources[each.table]
            memory = allocate_shard(source, each)
            self.weights[source.table.name] = nn.Parameter(memory, requires_grad=trains)
            if isinstance(optimizer, RowwiseAdagrad):
                state = torch.zeros(memory.shape[0])
                self.register_buffer(f"adagrad_{source.table.name}", state)
        if optimizer is not None and sources[0].dtype is torch.uint8:
            raise UsageError("quantised tables cannot be trained.", "Leave the optimizer out.")
        # Lets the backward pass come here on every rank, also where no parameter wants a gradient.
        self._anchor = torch.zeros(0, requires_grad=sources[0].dtype is not torch.uint8)
        self._room: HeapTensors | None = None
        self._exchanges: dict[int, IntraHostExchange | MultiHostExchange] = {}

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables whose bags this rank passes, in their order."""
        if self.inputs == "samples":
            return tuple(table.name for table in self.sharding.tables)
        return tuple(self.sharding.tables[each.table].name for each in self._mine)

    def forward(
        self,
        indices: Tensors,
        offsets: Tensors | None = None,
        per_sample_weights: Tensors | None = None,
    ) -> Tensor:
        """Look bags up; give the pooled rows of this rank's samples, (samples, all columns)."""
        bags = self._bags(indices, offsets, per_sample_weights)
        given = (self._anchor, bags.weights, *self.weights.values())
        rows: Tensor = _Lookup.apply(self, bags, *given)  # type: ignore[no-untyped-call]
        return rows

    def stream(
        self,
        indices: Tensors,
        offsets: Tensors | None = None,
        per_sample_weights: Tensors | None = None,
    ) -> Iterator[StreamedRows]:
        """Give this rank's rows slice by slice, each when it is complete; without gradients."""
        bags = self._bags(indices, offsets, per_sample_weights)
        exchange = self._set(bags)
        for first, rows in exchange.stream(self._call("stream", bags)):
            yield StreamedRows(first, rows)

    def timeline(self, indices: Tensors, offsets: Tensors | None = None) -> Timeline:
        """Look bags up once and give what every rank did when; inside one host."""
        bags = self._bags(indices, offsets, None)
        exchange = self._set(bags)
        if isinstance(exchange, MultiHostExchange):
            raise UsageError("there is no timeline of ranks on several hosts.")
        return exchange.timeline(self._call("timeline", bags))

    def lookup(self, bags: Bags) -> Tensor:
        """Pool bags into the outputs of all ranks; give this rank's."""
        exchange = self._set(bags)
        try:
            return exchange.run(self._call("forward", bags))
        except IndexError as error:
            raise BagError(
                f"{error}.", "Indices count from 0 to the rows of their table; offsets never fall."
            ) from error

    def send_gradients(self, bags: Bags, rows: Tensor, *, weights: bool) -> list[Tensor | None]:
        """Let gradients of rows go to whoever holds the tables; give those of the parameters.

        The first is that of the weights of the bags, if it is asked for.
        """
        exchange = self._exchange(bags.samples)
        counts = exchange.sort(self._lookups(bags))
        asked = GradientRequest(self.optimizer, self.sparse, bags.weights if weights else None)
        found, results = allocate_gradients(
            asked, list(self.weights.values()), counts, [self._state(s) for s in self._mine]
        )
        exchange.send_gradients(rows, results, self._call("backward", bags))
        return found.tensors()

    def extra_repr(self) -> str:
        """Say what this rank holds."""
        held = ", ".join(f"{name} {tuple(w.shape)}" for name, w in self.weights.items())
        return f"{self.pooling}, rank {self._rank} of {self.num_ranks} holds {held or 'no table'}"

    @property
    def _is_mean(self) -> bool:
        return self.pooling == "mean"

    def _call(self, what: str, bags: Bags) -> str:
        return f"EmbeddingAllToAll.{what}({bags.samples} samples)"

    def _bags(self, indices: Tensors, offsets: Tensors | None, weights: Tensors | None) -> Bags:
        bags = bags_of(indices, offsets, weights, len(self.table_names))
        if weights is not None and self._is_mean:
            raise UsageError("weights go with pooling='sum', not with 'mean'.")
        if self.inputs == "samples":
            if bags.weights is not None and bags.weights.requires_grad and torch.is_grad_enabled():
                raise UsageError(
                    "weights get no gradients with inputs='samples'.",
                    "Pass inputs='tables', or weights.detach().",
                )
            return exchange_inputs(self._channel, self.sharding, bags.flat())
        if any(not self.sharding.of(rank) for rank in range(self.num_ranks)):
            return bags._replace(samples=self._batch_size(bags.samples))
        return bags

    def _batch_size(self, samples: int) -> int:
        """Ask how large the batch is: a rank that holds no table cannot know."""
        counts = torch.zeros(self.num_ranks, dtype=torch.int64)
        mine = torch.tensor([samples if self._mine else -1])
        self._channel.all_gather(counts, mine, async_op=False)
        return int(counts.max())

    def _set(self, bags: Bags) -> IntraHostExchange | MultiHostExchange:
        exchange = self._exchange(bags.samples)
        exchange.set(self._lookups(bags))
        return exchange

    def _lookups(self, bags: Bags) -> RankLookups:
        given = [bags.addresses(number) for number in range(len(self._mine))]
        return RankLookups(self._mine, self._shards(), self._where(), given, self._is_mean)

    def _exchange(self, samples: int) -> IntraHostExchange | MultiHostExchange:
        """Find what is prepared for batches of that size, or prepare it, together."""
        found = self._exchanges.pop(samples, None)
        if found is None:
            found = self._made(EmbeddingBatch(self.sharding, samples, self._slices))
            if len(self._exchanges) >= _KEPT:
                self._exchanges.pop(next(iter(self._exchanges))).close()
        self._exchanges[samples] = found  # the last one used stands last
        return found

    def _made(self, batch: EmbeddingBatch) -> IntraHostExchange | MultiHostExchange:
        """Choose by where the ranks stand: shared memory inside a host, the wire between hosts."""
        if isinstance(self._channel, MultiHostChannel):
            return MultiHostExchange(self._channel, batch)
        if self._room is None:
            self._room = HeapTensors(self._group)
        return IntraHostExchange(self._room, batch)

    def _shards(self) -> list[ShardMemory]:
        tables = self.sharding.tables
        return [
            (
                *(tables[each.table].name, weight.data_ptr(), tables[each.table].rows),
                *(each.rows[0], each.rows[1] - each.rows[0], each.dim, ELEMENTS[weight.dtype]),
            )
            for each, weight in zip(self._mine, self.weights.values(), strict=True)
        ]

    def _where(self) -> list[tuple[int, bool, int]]:
        """Give where the columns of each shard stand, in a row and among partial sums."""
        sharding, between, start = self.sharding, {}, 0
        for table in sharding.joined:
            between[table] = start
            start += sharding.tables[table].dim
        return [
            (
                sharding.starts[each.table] + each.columns[0],
                sharding.is_partial(each),
                between.get(each.table, 0),
            )
            for each in self._mine
        ]

    def _state(self, each: TableShard) -> Tensor | None:
        name = self.sharding.tables[each.table].name
        return getattr(self, f"adagrad_{name}", None)


class _Lookup(torch.autograd.Function):
    """The operator in autograd: rows forth, gradients back."""

    @staticmethod
    def forward(ctx: Any, module: EmbeddingAllToAll, bags: Bags, *tensors: Tensor | None) -> Tensor:
        del tensors  # they are here to get gradients
        ctx.module, ctx.bags = module, bags
        return module.lookup(bags)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        wants = ctx.needs_input_grad[3]
        found = ctx.module.send_gradients(ctx.bags, grads[0], weights=wants)
        return (None, None, None, *found)


def _require_one_of(what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise UsageError(f"{what} is {given!r}: expected {' or '.join(known)}.")
