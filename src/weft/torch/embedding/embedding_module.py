"""Embedding tables sharded over a group; lookups pool directly into the memory of other ranks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
from weft.torch.embedding.bag_inputs import (
    Bags,
    RankLookups,
    ShardMemory,
    Tensors,
    bags_of,
    exchange_inputs,
)
from weft.torch.embedding.device_exchange import DeviceExchange, update_rows
from weft.torch.embedding.intra_host_exchange import HeapTensors, IntraHostExchange
from weft.torch.embedding.multi_host_exchange import MultiHostExchange
from weft.torch.embedding.row_gradients import (
    GradientRequest,
    RowOptimizer,
    RowwiseAdagrad,
    allocate_gradients,
)
from weft.torch.embedding.table_storage import ELEMENTS, TableInput, allocate_shard, sources_of
from weft.torch.hosts.multi_host_channel import MultiHostChannel

if TYPE_CHECKING:
    from weft.fused.torch_symmetric_tensors import SymmetricMemory

_KEPT = 8  # batch sizes whose memory is kept; an epoch has two: the last batch may be smaller


class StreamedRows(NamedTuple):
    """The rows of some of this rank's samples, from number ``first`` on."""

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
    gradients, ``sparse`` ones or dense. All ranks call it together. With ``device="cuda"`` tables
    lie on GPUs, and a fused kernel stores rows into symmetric memory (``memory``, by default
    torch's).
    """

    def __init__(  # noqa: PLR0913 - keywords, as those of nn.EmbeddingBag
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
        device: torch.device | str | None = None,
        memory: "SymmetricMemory | None" = None,
    ) -> None:
        super().__init__()
        _require_one_of("pooling", pooling, ("sum", "mean"))
        _require_one_of("inputs", inputs, ("tables", "samples"))
        sources = sources_of(tables)
        self._device = torch.device("cpu" if device is None else device)
        self._group, self._rank = group, dist.get_rank(group)
        self.num_ranks = dist.get_world_size(group)
        if memory is None and self._device.type != "cpu":
            memory = _device_memory(group, self._device)
        if memory is None:
            self._channel = weft_group(group).channel
        elif inputs != "tables" or sources[0].dtype is torch.uint8:
            raise UsageError(
                f"inputs: tables on a GPU take bags of the tables a rank holds (got {inputs!r}).",
                "Pass inputs='tables', and tables that are not quantized.",
            )
        self.sharding = shard([source.table for source in sources], sharding, self.num_ranks)
        self.pooling, self.inputs, self.sparse, self._slices = pooling, inputs, sparse, slices
        self.optimizer = optimizer
        self._mine: tuple[TableShard, ...] = self.sharding.of(self._rank)
        trains = sources[0].dtype is not torch.uint8 and optimizer is None
        self.weights = nn.ParameterDict()
        for each in self._mine:
            source = sources[each.table]
            rows = allocate_shard(source, each).to(self._device)
            self.weights[source.table.name] = nn.Parameter(rows, requires_grad=trains)
            if isinstance(optimizer, RowwiseAdagrad):
                state = torch.zeros(rows.shape[0], device=self._device)
                self.register_buffer(f"adagrad_{source.table.name}", state)
        if optimizer is not None and sources[0].dtype is torch.uint8:
            raise UsageError(
                "optimizer: quantized tables cannot be trained.", "Omit the optimizer."
            )
        # Makes autograd call backward on every rank, also where no parameter needs a gradient.
        self._anchor = torch.zeros(
            0, requires_grad=sources[0].dtype is not torch.uint8, device=self._device
        )
        self._on_device = None if memory is None else DeviceExchange(memory, self.sharding, group)
        self._heap_tensors: HeapTensors | None = None
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
        """Return the pooled rows of this rank's samples: (samples, all columns)."""
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
        """Yield this rank's rows slice by slice, each when it is complete; without gradients."""
        self._require_host("stream")
        bags = self._bags(indices, offsets, per_sample_weights)
        exchange = self._set(bags)
        for first, rows in exchange.stream(self._call("stream", bags)):
            yield StreamedRows(first, rows)

    def timeline(self, indices: Tensors, offsets: Tensors | None = None) -> Timeline:
        """Run one lookup and return the timeline of all ranks, which are on one host."""
        self._require_host("timeline")
        bags = self._bags(indices, offsets, None)
        exchange = self._set(bags)
        if isinstance(exchange, MultiHostExchange):
            raise UsageError("timeline: not supported for ranks on several hosts.")
        return exchange.timeline(self._call("timeline", bags))

    def lookup(self, bags: Bags) -> Tensor:
        """Pool bags into the outputs of all ranks; return this rank's."""
        try:
            if self._on_device is not None:
                return self._on_device.lookup(
                    [weight.detach() for weight in self.weights.values()], bags, mean=self._is_mean
                )
            exchange = self._set(bags)
            return exchange.run(self._call("forward", bags))
        except IndexError as error:
            raise BagError(
                f"{error}.",
                "Use indices from 0 to the rows of their table, and offsets that do not decrease.",
            ) from error

    def send_gradients(self, bags: Bags, rows: Tensor, *, weights: bool) -> list[Tensor | None]:
        """Send gradients of rows to the holders of the tables; return those of the parameters.

        The first is that of the weights of the bags, if it is needed.
        """
        if self._on_device is not None:
            return self._device_gradients(self._on_device, bags, rows, weights=weights)
        exchange = self._exchange(bags.samples)
        counts = exchange.sort(self._lookups(bags))
        asked = GradientRequest(self.optimizer, self.sparse, bags.weights if weights else None)
        found, results = allocate_gradients(
            asked, list(self.weights.values()), counts, [self._state(s) for s in self._mine]
        )
        exchange.send_gradients(rows, results, self._call("backward", bags))
        return found.tensors()

    def extra_repr(self) -> str:
        """Return what this rank holds."""
        held = ", ".join(f"{name} {tuple(w.shape)}" for name, w in self.weights.items())
        return f"{self.pooling}, rank {self._rank} of {self.num_ranks} holds {held or 'no table'}"

    def _device_gradients(
        self, exchange: DeviceExchange, bags: Bags, rows: Tensor, *, weights: bool
    ) -> list[Tensor | None]:
        """Update the rows of tables on a GPU, or return their gradients."""
        held = [weight.detach() for weight in self.weights.values()]
        found: list[Tensor | None] = [
            exchange.weight_gradients(held, bags, rows) if weights else None
        ]
        looked_up = exchange.gradients(bags, rows, mean=self._is_mean)
        for mine, weight, (indices, values) in zip(self._mine, held, looked_up, strict=True):
            if self.optimizer is not None:
                update_rows(weight, indices, values, self.optimizer, self._state(mine))
                found.append(None)
            elif self.sparse:
                found.append(
                    torch.sparse_coo_tensor(
                        indices.unsqueeze(0), values.to(weight.dtype), weight.shape
                    ).coalesce()
                )
            else:
                grad = torch.zeros_like(weight)
                found.append(grad.index_add_(0, indices, values.to(weight.dtype)))
        return found

    def _require_host(self, what: str) -> None:
        if self._on_device is not None:
            raise UsageError(f"{what}: not supported for tables on a GPU.", "Call the module.")

    @property
    def _is_mean(self) -> bool:
        return self.pooling == "mean"

    def _call(self, what: str, bags: Bags) -> str:
        return f"EmbeddingAllToAll.{what}({bags.samples} samples)"

    def _bags(self, indices: Tensors, offsets: Tensors | None, weights: Tensors | None) -> Bags:
        bags = bags_of(indices, offsets, weights, len(self.table_names)).require_on(self._device)
        if weights is not None and self._is_mean:
            raise UsageError("per_sample_weights: only supported with pooling='sum' (got 'mean').")
        if self.inputs == "samples":
            if bags.weights is not None and bags.weights.requires_grad and torch.is_grad_enabled():
                raise UsageError(
                    "per_sample_weights: gradients are not supported with inputs='samples'.",
                    "Pass inputs='tables', or weights.detach().",
                )
            return exchange_inputs(self._channel, self.sharding, bags.flat())
        if any(not self.sharding.of(rank) for rank in range(self.num_ranks)):
            return bags._replace(samples=self._batch_size(bags.samples))
        return bags

    def _batch_size(self, samples: int) -> int:
        """Return the batch size of the other ranks: a rank that holds no table does not know it."""
        counts = torch.zeros(self.num_ranks, dtype=torch.int64, device=self._device)
        mine = torch.tensor([samples if self._mine else -1], device=self._device)
        if self._on_device is not None:
            dist.all_reduce(mine, dist.ReduceOp.MAX, group=self._group)
            return int(mine)
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
        """Return the exchange of a batch size; create it on all ranks together if there is none."""
        found = self._exchanges.pop(samples, None)
        if found is None:
            found = self._made(EmbeddingBatch(self.sharding, samples, self._slices))
            if len(self._exchanges) >= _KEPT:
                self._exchanges.pop(next(iter(self._exchanges))).close()
        self._exchanges[samples] = found  # keeps the most recently used last
        return found

    def _made(self, batch: EmbeddingBatch) -> IntraHostExchange | MultiHostExchange:
        """Create an exchange: over shared memory on one host, over Gloo between hosts."""
        if isinstance(self._channel, MultiHostChannel):
            return MultiHostExchange(self._channel, batch)
        if self._heap_tensors is None:
            self._heap_tensors = HeapTensors(self._group)
        return IntraHostExchange(self._heap_tensors, batch)

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
        """Return the first column of each shard, in a row and among partial sums."""
        sharding, partial, start = self.sharding, {}, 0
        for table in sharding.joined:
            partial[table] = start
            start += sharding.tables[table].dim
        return [
            (
                sharding.starts[each.table] + each.columns[0],
                sharding.is_partial(each),
                partial.get(each.table, 0),
            )
            for each in self._mine
        ]

    def _state(self, each: TableShard) -> Tensor | None:
        name = self.sharding.tables[each.table].name
        return getattr(self, f"adagrad_{name}", None)


class _Lookup(torch.autograd.Function):
    """The autograd function of a lookup."""

    @staticmethod
    def forward(ctx: Any, module: EmbeddingAllToAll, bags: Bags, *tensors: Tensor | None) -> Tensor:
        del tensors  # passed only to get gradients
        ctx.module, ctx.bags = module, bags
        return module.lookup(bags)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        wants = ctx.needs_input_grad[3]
        found = ctx.module.send_gradients(ctx.bags, grads[0], weights=wants)
        return (None, None, None, *found)


def _device_memory(group: ProcessGroup | None, device: torch.device) -> "SymmetricMemory":
    """Return torch's symmetric memory of a GPU; the kernels need Triton."""
    from weft.fused.torch_symmetric_tensors import TorchSymmetricMemory

    return TorchSymmetricMemory(group, device)


def _require_one_of(what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise UsageError(f"{what}: expected {' or '.join(known)} (got {given!r}).")
