"""DLRM: embedding tables spread over ranks, MLPs on every rank, exchanges in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.errors import UsageError
from weft.models.building import BUCKET, Ops
from weft.models.tables import Shard, Table, table_wise
from weft.schedule.ir import Cost
from weft.step.step_graph import Memory, Op, RankStep, StepGraph


@dataclass(frozen=True, slots=True)
class Dlrm:
    """Tables, the layers of both MLPs (inputs first) and the samples of the whole job.

    The bottom MLP ends in vectors as wide as the widest table. Vectors meet in inner products of
    every two, or with a ``cross`` of so many columns in that many ``cross_layers`` of low rank
    (DCNv2, arXiv 2008.13535).
    """

    tables: tuple[Table, ...]
    bottom: tuple[int, ...] = (13, 512, 256, 128)
    top: tuple[int, ...] = (1024, 1024, 512, 256, 1)
    batch: int = 4096
    dtype: str = "fp32"
    forward_only: bool = False
    cross: int = 0
    cross_layers: int = 3

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
    """Make one step on ``num_ranks`` ranks, tables placed as ``shards`` say or by lookups."""
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
    placed = table_wise(model.tables, num_ranks) if shards is None else tuple(shards)
    held: dict[int, list[Shard]] = defaultdict(list)
    for shard in placed:
        held[shard.rank].append(shard)
    alike: dict[tuple[Op, ...], list[int]] = defaultdict(list)
    for ranks in _holding_alike(model, num_ranks, held):
        alike[tuple(_Rank(model, num_ranks, held[ranks[0]]).ops())] += ranks
    steps = tuple(RankStep(tuple(sorted(ranks)), ops) for ops, ranks in alike.items())
    source = f"generated: {name}"
    return StepGraph(name, num_ranks, steps, memory=_memory(model, num_ranks, held), source=source)


def _holding_alike(model: Dlrm, num_ranks: int, held: dict[int, list[Shard]]) -> list[list[int]]:
    """Group ranks that hold shards of the same shapes: most of a large job hold none."""
    groups: dict[tuple[tuple[object, ...], ...], list[int]] = defaultdict(list)
    for rank in range(num_ranks):
        mine = held.get(rank, [])
        key = tuple((s.rows, s.dim, s.by_rows, *_asked(model.tables[s.table])) for s in mine)
        groups[key].append(rank)
    return list(groups.values())


def _asked(table: Table) -> tuple[object, ...]:
    return table.rows, table.pooling, table.zipf


class _Rank:
    """The ops of one rank: what it looks up for all, and its share of the samples."""

    def __init__(self, model: Dlrm, num_ranks: int, shards: list[Shard]) -> None:
        self.model, self.num_ranks, self.shards = model, num_ranks, shards
        self.samples = model.batch // num_ranks
        self.made = Ops(model.dtype)
        self._reduced = -1  # the last bucket of gradients
        self._left = 0  # bytes of gradients that wait for their bucket

    def ops(self) -> list[Op]:
        self._forward()
        if not self.model.forward_only:
            self.made.phase = "backward"
            self._backward()
            self.made.phase = "optimizer"
            self.made.kernel(
                "sgd", "optimizer", nbytes=12 * self.model.dense_weights, after=self._reduced
            )
        return self.made.ops

    @property
    def _sent(self) -> int:
        """Bytes of pooled vectors that this rank has for each rank."""
        return sum(shard.dim for shard in self.shards) * self.samples * self.made.item

    def _exchange(self, after: int) -> int:
        """Exchange vectors. Gradients come back the same way, so the busiest rank is the same."""
        if self.num_ranks < 2:
            return -1
        splits = (self._sent,) * self.num_ranks
        return self.made.collective("all_to_all", sum(splits), splits=splits, after=after)

    def _lookups(self, family: str, after: int = -1) -> int:
        """Look up tables of one shape in one kernel, as batched embedding kernels do."""
        kinds: dict[tuple[float, ...], int] = defaultdict(int)
        for shard in self.shards:
            table = self.model.tables[shard.table]
            share = shard.rows / table.rows if shard.by_rows else 1.0
            kinds[shard.rows, shard.dim, max(table.pooling * share, 1e-3), table.zipf] += 1
        done = -1
        for (rows, dim, pooling, zipf), count in kinds.items():
            shape = (self.model.batch, int(rows), int(dim), pooling, zipf, count)
            nbytes = int(self.model.batch * pooling * dim * self.made.item * count)
            cost = Cost(family, shape, self.model.dtype, 0.0, nbytes)
            after_op = (after,) if after >= 0 else ()
            self.made.ops.append(Op(family, cost=cost, after=after_op, phase=self.made.phase))
            done, after = self.made.last, -1
        return done

    def _mlp(self, which: str) -> None:
        for number, (k, n) in enumerate(self.model.layers(which)):
            self.made.gemm(f"{which} {number}", self.samples, n, k)
            self.made.moving(f"{which} relu", 2 * self.samples * n)

    def _mlp_backward(self, which: str) -> None:
        for number, (k, n) in reversed(list(enumerate(self.model.layers(which)))):
            self.made.moving(f"{which} relu backward", 3 * self.samples * n)
            self.made.gemm(f"{which} {number} input gradient", self.samples, k, n)
            self.made.gemm(f"{which} {number} weight gradient", k, n, self.samples)
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
        looked = self._lookups("embedding")
        sent = self._exchange(looked)
        self._mlp("bottom")
        vectors = len(model.tables) + 1
        width = max(table.dim for table in model.tables)
        made.moving("concat", 2 * self.samples * vectors * width, family="concat", after=sent)
        if model.cross:
            self._crossed()
        else:
            made.bmm("interaction", self.samples, vectors, vectors, width)
            made.moving("triangle", 2 * self.samples * model.pairs, family="concat")
        self._mlp("top")
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
            made.moving(f"cross {layer} backward", 6 * self.samples * model.width)
            wide, narrow = model.width, model.cross
            for name, n, k in (("up", wide, narrow), ("down", narrow, wide)):
                made.gemm(f"cross {layer} {name} input gradient", self.samples, k, n)
                made.gemm(f"cross {layer} {name} weight gradient", k, n, self.samples)
                self._reduce(k * n, last=layer == 0 and name == "down")

    def _backward(self) -> None:
        model, made = self.model, self.made
        self._mlp_backward("top")
        vectors = len(model.tables) + 1
        width = max(table.dim for table in model.tables)
        if model.cross:
            self._crossed_backward()
        else:
            made.bmm("interaction backward", self.samples, vectors, 2 * width, vectors)
        done = made.moving("concat backward", 2 * self.samples * vectors * width, family="concat")
        sent = self._exchange(done)
        self._mlp_backward("bottom")
        self._lookups("embedding-backward", after=sent)


def _memory(model: Dlrm, num_ranks: int, held: dict[int, list[Shard]]) -> Memory:
    """Return what the fullest rank needs: its tables, dense weights, vectors of its samples."""
    tables = max(
        sum(s.nbytes(model.tables[s.table].itemsize) for s in held[r]) for r in range(num_ranks)
    )
    dense, samples = model.dense_weights * 4, model.batch // num_ranks
    vectors = samples * sum(table.dim for table in model.tables) * 4
    hidden = samples * (sum(model.bottom) + sum(model.top)) * 4
    looked = max(sum(s.dim for s in held[r]) * model.batch * 4 for r in range(num_ranks))
    if model.forward_only:
        return Memory(weights=tables + dense, activations=vectors + hidden + looked)
    return Memory(
        weights=tables + dense,
        gradients=dense + 2 * looked,
        optimizer=0,
        activations=2 * (vectors + hidden) + looked,
    )
