"""DLRM: embedding tables spread over ranks, MLPs on every rank, exchanges in between."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from weft.errors import UsageError, nearest
from weft.hardware.dtypes import item_bytes, output_dtype
from weft.models.building import BUCKET, Ops
from weft.models.tables import ROW_DTYPES, Shard, Table, cut_by_rows, table_wise
from weft.schedule.ir import Cost
from weft.schedule.values import Group
from weft.step.step_graph import Memory, Op, RankStep, StepGraph


@dataclass(frozen=True, slots=True)
class Dlrm:
    """Tables, the layers of both MLPs (inputs first) and the samples of the whole job.

    The bottom MLP ends in vectors as wide as the widest table. Vectors meet in inner products of
    every two, or with a ``cross`` of so many columns in that many ``cross_layers`` of low rank
    (DCNv2, arXiv 2008.13535).

    Tables of at most ``replicated`` rows are on every rank, and the gradients of their rows are
    summed as those of the MLPs. With ``bottom_first`` the bottom MLP runs on the first rank, for
    the samples of all. With a ``node`` of so many ranks, all ranks of a node hold parts of the same
    tables: their sums are added up inside the node before they are exchanged between nodes. With a
    ``cut`` tables are cut by rows to even out lookups, a part counting as so many more. Vectors
    are exchanged in ``exchange_dtype``, or that of the MLPs. ``optimizer`` is sgd, adagrad or adam.
    ``fused_relu``: bias and activation are part of the products. ``fused_interaction``: inner
    products are one kernel. Without ``fused_update`` the gradients of lookups are sparse tensors,
    which several kernels read and write.
    """

    tables: tuple[Table, ...]
    bottom: tuple[int, ...] = (13, 512, 256, 128)
    top: tuple[int, ...] = (1024, 1024, 512, 256, 1)
    batch: int = 4096
    dtype: str = "fp32"
    forward_only: bool = False
    cross: int = 0
    cross_layers: int = 3
    replicated: int = 0
    bottom_first: bool = False
    node: int = 0
    cut: float = 0.0
    exchange_dtype: str = ""
    optimizer: str = "sgd"
    fused_relu: bool = False
    fused_interaction: bool = False
    fused_update: bool = True

    @property
    def sharded(self) -> tuple[int, ...]:
        """Numbers of the tables that are not on every rank."""
        return tuple(n for n, table in enumerate(self.tables) if table.rows > self.replicated)

    @property
    def width(self) -> int:
        """Elements of all vectors of a sample side by side."""
        return (len(self.tables) + 1) * max(table.dim for table in self.tables)

    @property
    def pairs(self) -> int:
        """What the interaction adds to a sample: inner products of every two vectors."""
        if self.cross:
            return self.width - self.bottom[-1]
        return (len(self.tables) + 1) * len(self.tables) // 2

    @property
    def dense_weights(self) -> int:
        """Parameters of both MLPs."""
        layers = [*self._layers(self.bottom), *self._layers(self._top)]
        crossed = 2 * self.cross_layers * self.cross * self.width
        return sum(k * n + n for k, n in layers) + crossed

    @property
    def _top(self) -> tuple[int, ...]:
        return (self.bottom[-1] + self.pairs, *self.top)

    @staticmethod
    def _layers(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
        return list(pairwise(sizes))

    def layers(self, which: str) -> list[tuple[int, int]]:
        """Return inputs and outputs of each layer of an MLP."""
        return self._layers(self.bottom if which == "bottom" else self._top)


def build(
    name: str, model: Dlrm, num_ranks: int, shards: Sequence[Shard] | None = None
) -> StepGraph:
    """Build one step on ``num_ranks`` ranks, tables placed as ``shards`` say or by lookups."""
    if model.batch < num_ranks:
        raise UsageError(
            f"{num_ranks} ranks are more than the {model.batch} samples of a batch",
            f"Use --set batch={num_ranks} or more.",
        )
    if model.batch % num_ranks:
        raise UsageError(
            f"a batch of {model.batch} does not divide among {num_ranks} ranks",
            f"Use --set batch={model.batch // num_ranks * num_ranks}.",
        )
    node = model.node
    if node and num_ranks % node:
        raise UsageError(
            f"node: nodes of {node} do not divide {num_ranks} ranks",
            "Use --set node=0 or a divisor.",
        )
    if model.optimizer not in _STATES:
        raise UsageError(
            f"optimizer: unknown optimizer of tables {model.optimizer!r}",
            nearest(model.optimizer, _STATES),
        )
    held: dict[int, list[Shard]] = defaultdict(list)
    for shard in _placed(model, num_ranks) if shards is None else shards:
        held[shard.rank].append(shard)
    alike: dict[tuple[Op, ...], list[int]] = defaultdict(list)
    for ranks in _holding_alike(model, num_ranks, held):
        alike[tuple(_Rank(model, num_ranks, held[ranks[0]], ranks[0]).ops())] += ranks
    steps = tuple(RankStep(tuple(sorted(ranks)), ops) for ops, ranks in alike.items())
    source = f"generated: {name}"
    groups = {"node": Group(node), "nodes": Group(num_ranks // node, node)} if node else {}
    memory = _memory(model, num_ranks, held)
    return StepGraph(name, num_ranks, steps, groups, memory=memory, source=source)


_STATES = {"sgd": 0, "adagrad": 1, "adam": 2}  # elements of state for each weight
_FEW = 4  # ranks among which the one with the bottom MLP has tables too


def _placed(model: Dlrm, num_ranks: int) -> list[Shard]:
    """Return the shards of tables; the rank of the bottom MLP holds some only among few ranks."""
    spared = int(model.bottom_first and num_ranks > _FEW)
    each = model.node or 1  # ranks that share a table
    tables, places = [model.tables[n] for n in model.sharded], num_ranks // each - spared
    if model.cut:
        state = float(_STATES[model.optimizer])
        found = cut_by_rows(tables, places, model.cut, ranks=each, state=state)
    else:
        found = tuple(
            Shard(s.table, s.rank * each + part, max(1, s.rows // each), s.dim, by_rows=each > 1)
            for s in table_wise(tables, places)
            for part in range(each)
        )
    return [replace(s, table=model.sharded[s.table], rank=s.rank + spared * each) for s in found]


def _holding_alike(model: Dlrm, num_ranks: int, held: dict[int, list[Shard]]) -> list[list[int]]:
    """Group ranks that hold shards of the same shapes: most of a large job hold none."""
    groups: dict[tuple[bool, tuple[tuple[object, ...], ...]], list[int]] = defaultdict(list)
    for rank in range(num_ranks):
        mine = held.get(rank, [])
        first = rank == 0 and model.bottom_first
        shapes = [(s.rows, s.dim, s.by_rows, *_asked(model.tables[s.table])) for s in mine]
        groups[first, tuple(shapes)].append(rank)
    return list(groups.values())


def _asked(table: Table) -> tuple[object, ...]:
    return table.rows, table.pooling, table.zipf


_FLOAT = 4  # bytes of an element of a gradient


class _Rank:
    """The ops of one rank: what it looks up for all, and its share of the samples."""

    def __init__(self, model: Dlrm, num_ranks: int, shards: list[Shard], rank: int) -> None:
        self.model, self.num_ranks, self.shards = model, num_ranks, shards
        self.samples = model.batch // num_ranks
        # samples of the bottom MLP here
        self.bottom = self.samples if not model.bottom_first else model.batch * (rank == 0)
        self.everywhere = [table for table in model.tables if table.rows <= model.replicated]
        self.made = Ops(model.dtype)
        self._reduced = -1  # the last bucket of gradients
        self._left = 0  # bytes of gradients that wait for their bucket

    def ops(self) -> list[Op]:
        self._forward()
        if not self.model.forward_only:
            self.made.phase = "backward"
            self._backward()
            self.made.phase = "optimizer"
            moved = (12 + 8 * _STATES[self.model.optimizer]) * (
                self.model.dense_weights + self._replicated
            )
            self.made.kernel(self.model.optimizer, "optimizer", nbytes=moved, after=self._reduced)
        return self.made.ops

    @property
    def _replicated(self) -> int:
        """Weights of the tables that every rank has."""
        return sum(table.rows * table.dim for table in self.everywhere)

    @property
    def _sent(self) -> int:
        """Bytes of pooled vectors that this rank has for each rank."""
        bottom = self.model.bottom[-1] * (self.model.bottom_first and self.bottom > 0)
        item = int(item_bytes(self.model.exchange_dtype or output_dtype(self.model.dtype)))
        return (sum(shard.dim for shard in self.shards) + bottom) * self.samples * item

    def _exchange(self, after: int) -> int:
        """Exchange vectors. Gradients come back the same way, so the busiest rank is the same."""
        if self.num_ranks < 2:
            return -1
        node, whole = self.model.node, self._sent * self.num_ranks
        if not node:
            splits = (self._sent,) * self.num_ranks
            return self.made.collective("all_to_all", whole, splits=splits, after=after)
        nodes, forward = self.num_ranks // node, self.made.phase == "forward"
        if forward:
            after = self.made.collective("reduce_scatter", whole, "node", after=after)
        if nodes > 1:
            splits = (self._sent,) * nodes
            after = self.made.collective(
                "all_to_all", sum(splits), "nodes", splits=splits, after=after
            )
        return after if forward else self.made.collective("all_gather", whole, "node", after=after)

    def _lookups(self, family: str, after: int = -1, state: float = 0.0) -> int:
        """Look up tables of one shape in one kernel, as batched embedding kernels do."""
        kinds: dict[tuple[float, ...], int] = defaultdict(int)
        for shard in self.shards:
            table = self.model.tables[shard.table]
            share = shard.rows / table.rows if shard.by_rows else 1.0
            pooling = max(table.pooling * share, 1e-3)
            kinds[shard.rows, shard.dim, pooling, table.zipf, table.itemsize] += 1
        done = -1
        for (rows, dim, pooling, zipf, item), count in kinds.items():
            shape = (self.model.batch, int(rows), int(dim), pooling, zipf, count, state)
            done, after = self._looked(family, shape, int(item), after), -1
        return done

    def _local_lookups(self, family: str) -> None:
        """Look up this rank's samples in the tables that every rank has, all in one kernel."""
        kinds: dict[tuple[float, ...], list[Table]] = defaultdict(list)
        for table in self.everywhere:
            kinds[table.dim, table.zipf, table.itemsize].append(table)
        for (dim, zipf, item), tables in kinds.items():
            rows, pooling = (
                sum(each) / len(tables)
                for each in ([t.rows for t in tables], [t.pooling for t in tables])
            )
            shape = (self.samples, max(1, int(rows)), int(dim), pooling, zipf, len(tables), 0.0)
            self._looked(family, shape, int(item), -1)

    def _looked(self, family: str, shape: tuple[float, ...], item: int, after: int) -> int:
        samples, _, dim, pooling, _, count, _ = shape
        nbytes = int(samples * pooling * dim * item * count)
        cost = Cost(family, shape, ROW_DTYPES.get(item, self.model.dtype), 0.0, nbytes)
        needs = (after,) if after >= 0 else ()
        self.made.ops.append(Op(family, cost=cost, after=needs, phase=self.made.phase))
        return self.made.last

    def _cast(self, name: str, after: int = -1) -> int:
        """Convert vectors between the dtypes of tables and MLPs, where no kernel does so itself."""
        wide = sum(shard.dim for shard in self.shards) * self.model.batch
        if self.model.fused_update or self.made.item == _FLOAT or not wide:
            return after
        return self.made.kernel(name, "copy", nbytes=wide * (_FLOAT + self.made.item), after=after)

    def _update(self, after: int) -> None:
        """Change the rows that were asked for, on ranks that hold them."""
        if not self.shards:
            return
        after = self._cast("cast gradients", after)
        if not self.model.fused_update:
            looked = sum(self._asked_of(shard) * shard.dim for shard in self.shards)
            # written as a sparse tensor, scaled by the learning rate, and back from loss scaling
            passes = 2 + 2 + 2 * (self.made.item < _FLOAT)
            after = self.made.kernel(
                "sparse gradients", "copy", nbytes=round(passes * _FLOAT * looked), after=after
            )
        # with state, sums of gradients of rows are written and read again; state is both as well
        states = _STATES[self.model.optimizer]
        self._lookups("embedding-backward", after, 2.0 * (states + 1) if states else 0.0)

    def _asked_of(self, shard: Shard) -> float:
        """Lookups of a batch in a shard."""
        table = self.model.tables[shard.table]
        return self.model.batch * table.pooling * (shard.rows / table.rows if shard.by_rows else 1)

    def _mlp(self, which: str, samples: int) -> None:
        for number, (k, n) in enumerate(self.model.layers(which)):
            self.made.gemm(f"{which} {number}", samples, n, k)
            if not self.model.fused_relu:
                self.made.moving(f"{which} relu", 2 * samples * n)

    def _mlp_backward(self, which: str, samples: int) -> None:
        for number, (k, n) in reversed(list(enumerate(self.model.layers(which)))):
            if not self.model.fused_relu:
                self.made.moving(f"{which} relu backward", 3 * samples * n)
            if which == "top" or number:
                self.made.gemm(f"{which} {number} input gradient", samples, k, n)
            self.made.gemm(f"{which} {number} weight gradient", k, n, samples)
            if which == "top" or not self.model.bottom_first:
                self._reduce(k * n + n, last=number == 0)

    def _reduce(self, weights: int, *, last: bool) -> None:
        """Sum gradients over all ranks when their bucket is full, or its part of the model ends."""
        self._left += weights * self.made.item
        if self.num_ranks > 1 and (self._left >= BUCKET or last):
            self._reduced = self.made.collective(
                "all_reduce", self._left, after=self.made.last, stream="comm gradients"
            )
            self._left = 0

    def _forward(self) -> None:
        model, made = self.model, self.made
        if model.bottom_first and self.bottom:
            self._mlp("bottom", self.bottom)
        looked = self._cast("cast", self._lookups("embedding"))
        sent = self._exchange(max(looked, made.last_kernel) if model.bottom_first else looked)
        self._local_lookups("embedding")
        if not model.bottom_first:
            self._mlp("bottom", self.samples)
        vectors = len(model.tables) + 1
        width = max(table.dim for table in model.tables)
        made.moving("concat", 2 * self.samples * vectors * width, family="concat", after=sent)
        if model.cross:
            self._crossed()
        elif model.fused_interaction:
            made.moving("interaction", self.samples * (vectors * width + model.pairs))
        else:
            made.bmm("interaction", self.samples, vectors, vectors, width)
            made.moving("triangle", 2 * self.samples * model.pairs, family="concat")
        self._mlp("top", self.samples)
        made.moving("loss", 4 * self.samples)

    def _crossed(self) -> None:
        model, made = self.model, self.made
        for layer in range(model.cross_layers):
            made.gemm(f"cross {layer} down", self.samples, model.cross, model.width)
            made.gemm(f"cross {layer} up", self.samples, model.width, model.cross)
            made.moving(f"cross {layer}", 4 * self.samples * model.width)

    def _crossed_backward(self) -> None:
        model, made = self.model, self.made
        for layer in reversed(range(model.cross_layers)):
            # two products of the gradient, one added to a sum; sums of rows for the bias; and the
            # gradient that passes by the layer, to which the product of its input is added
            made.moving(f"cross {layer} backward", 8 * self.samples * model.width)
            wide, narrow = model.width, model.cross
            for name, n, k in (("up", wide, narrow), ("down", narrow, wide)):
                made.gemm(f"cross {layer} {name} input gradient", self.samples, k, n)
                made.gemm(f"cross {layer} {name} weight gradient", k, n, self.samples)
                self._reduce(k * n, last=layer == 0 and name == "down")

    def _backward(self) -> None:
        model, made = self.model, self.made
        self._mlp_backward("top", self.samples)
        vectors = len(model.tables) + 1
        width = max(table.dim for table in model.tables)
        if model.cross:
            self._crossed_backward()
        elif model.fused_interaction:
            moved = self.samples * (2 * vectors * width + model.pairs)
            made.moving("interaction backward", moved)
        else:
            made.bmm("interaction backward", self.samples, vectors, 2 * width, vectors)
        done = made.moving("concat backward", 2 * self.samples * vectors * width, family="concat")
        sent = self._exchange(done)
        if self.everywhere:
            self._local_lookups("embedding-backward")
            self._reduce(self._replicated, last=model.bottom_first)
        if self.bottom:
            made.wait_for(sent if model.bottom_first else -1)
            self._mlp_backward("bottom", self.bottom)
        self._update(sent)


def _memory(model: Dlrm, num_ranks: int, held: dict[int, list[Shard]]) -> Memory:
    """Return what the fullest rank needs: its tables, dense weights, vectors of its samples."""
    tables = max(
        sum(s.nbytes(model.tables[s.table].itemsize) for s in held[r]) for r in range(num_ranks)
    )
    dense, samples = model.dense_weights * 4, model.batch // num_ranks
    vectors = samples * sum(table.dim for table in model.tables) * 4
    hidden = samples * (sum(model.bottom) + sum(model.top)) * 4
    looked = max(sum(s.dim for s in held[r]) * model.batch * 4 for r in range(num_ranks))
    tables += sum(t.nbytes for t in model.tables if t.rows <= model.replicated)
    if model.forward_only:
        return Memory(weights=tables + dense, activations=vectors + hidden + looked)
    return Memory(
        weights=tables + dense,
        gradients=dense + 2 * looked,
        optimizer=_STATES[model.optimizer] * (tables + dense),
        activations=2 * (vectors + hidden) + looked,
    )
