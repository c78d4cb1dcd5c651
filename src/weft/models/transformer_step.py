"""One step of a transformer, trained or serving: what each stage of its pipeline does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.models.building import BUCKET, Ops
from weft.models.pipeline import Pass, passes
from weft.models.transformer import Piece
from weft.models.transformer_layer import Layer
from weft.models.transformer_layout import Layout, memory_of, split
from weft.workload.step import Step, Workload

if TYPE_CHECKING:
    from weft.models.transformer import Transformer
    from weft.workload.step import Op

_GRADIENTS = "comm dp"  # the stream of what data-parallel ranks share: weights and gradients


def build(
    name: str, model: Transformer, num_ranks: int, pieces: tuple[Piece, ...] = ()
) -> Workload:
    """Make the workload of one step on ``num_ranks`` ranks.

    ``pieces`` are what a server computes in one pass; without them all sequences are alike.
    """
    layout = Layout(model, num_ranks)
    steps = []
    for stage in range(model.pp):
        body = _Stage(model, layout, stage, pieces)
        block = num_ranks // model.pp
        steps.append(Step(tuple(range(stage * block, (stage + 1) * block)), tuple(body.ops())))
    return Workload(
        name,
        num_ranks,
        tuple(steps),
        layout.groups,
        memory_of(model, layout),
        source=f"generated: {name}",
    )


class _Stage:
    """The ops of one stage of the pipeline."""

    def __init__(
        self, model: Transformer, layout: Layout, stage: int, pieces: tuple[Piece, ...] = ()
    ) -> None:
        self.model, self.layout, self.stage = model, layout, stage
        every = split(model.layers, model.pp * model.interleave)
        self.chunks = every[stage :: model.pp]  # layers of each
        self._enter(0)
        self.made = Ops(model.dtype, math=model.math)
        queries = 1 if model.mode == "decode" else model.seq
        self.tokens = layout.micro * queries
        self.scored = layout.micro * min(queries, model.scored or queries)
        if pieces:  # of each sequence only the last token is asked for what follows it
            self.tokens = sum(piece.count * piece.queries for piece in pieces)
            self.scored = sum(piece.count for piece in pieces)
        pieces = pieces or (Piece(layout.micro, queries, model.seq),)
        self.layer = Layer(model, self.made, self.tokens, pieces)
        self._final = False  # whether this is the last backward pass of the step
        self._left: dict[str, int] = {}  # by group, gradients that wait for their bucket

    def ops(self) -> list[Op]:
        """Put the passes of all micro batches one after another, then the optimizer."""
        model, made = self.model, self.made
        if model.mode != "train":
            for micro in range(self.layout.num_micro):
                self._pass(Pass(forward=True, micro=micro))
            return made.ops
        order = passes(model.pp, self.stage, self.layout.num_micro, model.interleave)
        left = dict.fromkeys(range(model.interleave), self.layout.num_micro)
        for each in order:
            left[each.chunk] -= not each.forward
            made.phase = "forward" if each.forward else "backward"
            self._final = not left[each.chunk]
            self._pass(each)
        made.phase = "optimizer"
        self._optimizer()
        return made.ops

    def _enter(self, chunk: int) -> None:
        """Turn to a chunk of layers: the first has the embedding, the last of all the head."""
        self.layers = self.chunks[chunk]
        self.first = self.stage == 0 and chunk == 0
        self.last = self.stage == self.model.pp - 1 and chunk == self.model.interleave - 1

    def _pass(self, each: Pass) -> None:
        """One micro batch through this stage, with what it gets and gives."""
        made, model = self.made, self.model
        self._enter(each.chunk)
        size = self.tokens * model.hidden * made.item
        way, group = (1, "pp") if each.forward else (-1, "pp back")
        begins, ends = (self.first, self.last) if each.forward else (self.last, self.first)
        got = -1
        if not begins:
            came = (self.stage - way) % model.pp
            got = made.collective("recv", size, group, peer=came, stream=f"{group} from {came}")
        (self._forward if each.forward else self._backward)(got)
        if not ends:
            goes, done = (self.stage + way) % model.pp, made.last_kernel
            stream = f"{group} to {goes}"
            made.collective("send", size, group, peer=goes, after=done, stream=stream)

    def _shares(self) -> dict[str, int]:
        """Return the weights of a layer by the group of ranks that have the same ones.

        Experts are shared by fewer ranks than the rest: each of ``ep`` has others.
        """
        layer, model = self.layer, self.model
        if model.ep == 1:
            return {"dp": layer.weights}
        return {"dp": layer.dense_weights, "edp": layer.expert_weights}

    def _shared(self, group: str, nbytes: int, kind: str, *, after: int = -1) -> int:
        """Add a collective of the ranks that have the same weights; all take turns on a stream."""
        return self.made.collective(kind, nbytes, group, after=after, stream=_GRADIENTS)

    def _gather(self) -> int:
        """Bring the weights of a layer together where they are shared out."""
        gathered = -1
        for group, weights in self._shares().items():
            if self.model.fsdp and self.layout.groups[group].size > 1:
                nbytes = weights * self.made.weight_item
                gathered = self._shared(group, nbytes, "all_gather")
        return gathered

    def _forward(self, got: int) -> None:
        model, made, tokens = self.model, self.made, self.tokens
        if self.first:
            made.kernel("embedding", "embedding", tokens, model.vocab, model.hidden, 1)
        gathered = self._gather()
        for layer in range(self.layers):
            ahead = self._gather() if layer + 1 < self.layers else -1
            self.layer.forward((gathered, got))
            gathered, got = ahead, -1
        if self.last:
            self._head()

    def _head(self) -> None:
        model, made = self.model, self.made
        made.kernel("norm", "norm", self.tokens, model.hidden)
        made.gemm("head", self.scored, model.vocab // model.tp, model.hidden)
        if model.mode == "train":
            made.kernel("loss", "softmax", self.scored, model.vocab // model.tp)

    def _backward(self, got: int) -> None:
        model, made, tokens = self.model, self.made, self.tokens
        if self.last:
            made.kernel("loss backward", "softmax-backward", self.scored, model.vocab // model.tp)
            self.layer.product_backward("head", self.scored, model.vocab // model.tp, model.hidden)
            made.kernel("norm backward", "norm-backward", tokens, model.hidden)
        gathered = self._gather()
        for layer in range(self.layers):
            ahead = self._gather() if layer + 1 < self.layers else -1
            if model.recompute:  # as part of the backward pass, which starts with what it gets
                self.layer.forward((gathered, got))
            self.layer.backward((gathered, got))
            self._gradients(last_layer=layer + 1 == self.layers)
            gathered, got = ahead, -1
        if self.first:
            rows = tokens, model.vocab, model.hidden, 1
            made.kernel("embedding backward", "embedding-backward", *rows)

    def _gradients(self, *, last_layer: bool) -> None:
        """Give the gradients of a layer away: scattered, or in buckets once they are whole."""
        model, made, needed = self.model, self.made, self.made.last_kernel
        if model.frozen:
            return
        for group, weights in self._shares().items():
            nbytes = weights * made.item
            if self.layout.groups[group].size < 2:
                continue
            if model.fsdp:
                self._shared(group, nbytes, "reduce_scatter", after=needed)
            elif self._final:
                left = self._left.get(group, 0) + nbytes
                while left >= BUCKET or (last_layer and left):
                    size = min(left, BUCKET)
                    left -= size
                    self._shared(group, size, "all_reduce", after=needed)
                self._left[group] = left

    def _optimizer(self) -> None:
        """AdamW in one pass: gradient, weight and two moments are read, three of them written."""
        made, model = self.made, self.model
        if model.frozen:
            return
        held = sum(self.chunks) * sum(
            weights // (self.layout.groups[group].size if model.fsdp else 1)
            for group, weights in self._shares().items()
        )
        if self.stage in (0, model.pp - 1):
            ends = model.vocab * model.hidden // model.tp
            held += ends // (self.layout.dp if model.fsdp else 1)
        reduced = self._last_reduction()
        if model.clip:
            made.kernel("gradient norm", "reduction", nbytes=4 * held, after=reduced)
            made.kernel("clip", "elementwise", nbytes=8 * held)
        made.kernel("adamw", "optimizer", nbytes=28 * held, after=reduced)

    def _last_reduction(self) -> int:
        """Return the number of the last sum of gradients, -1 without one.

        Sums follow each other on one stream, so the end of the last is the end of them all. What
        a stage sends to another behind them is none of the optimizer's.
        """
        ops = self.made.ops
        return max((n for n, op in enumerate(ops) if op.stream == _GRADIENTS), default=-1)
