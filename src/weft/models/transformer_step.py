"""One step of a transformer, trained or serving: what each stage of its pipeline does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

from weft.hardware.dtypes import item_bytes
from weft.models.building import Ops
from weft.models.pipeline import Pass, PassOrder
from weft.models.transformer import Piece, Transformer
from weft.models.transformer_layer import Layer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import fullest_memory
from weft.step.step_graph import Op, RankStep, StepGraph

_GRADIENTS = "comm dp"  # the stream of what data-parallel ranks share: weights and gradients
# Bytes of a logit that each kernel of Megatron's vocab_parallel_cross_entropy moves, in fp32.
_LOSS_PASSES = (
    *(("loss cast", 6), ("loss maximum", 4), ("loss subtract", 8)),
    *(("loss exp", 8), ("loss sum", 4), ("loss divide", 8)),
)
_LOSS_PASSES_BACKWARD = (("loss scale backward", 8), ("loss cast backward", 6))
# The names of ops behind the last layer: products of the vocabulary, and the loss.
HEAD_OPS = frozenset(
    ("head", "head input gradient", "head weight gradient", "loss", "loss backward")
) | {name for name, _ in (*_LOSS_PASSES, *_LOSS_PASSES_BACKWARD)}
# Groups of ranks that share weights out, by the ranks that have the same ones, where they are fewer
# (HSDP); and by those the groups of ranks that have the same shards.
_SHARDS = {"dp": "shard", "edp": "expert shard"}
_REPLICAS = {"shard": "replica", "expert shard": "expert replica"}
_LAYER_TENSORS = 5  # large weights of a layer: qkv, projection, gate, up, down
Shares = Mapping[str, int]  # by group of ranks that have the same ones, parameters


def build(
    name: str, model: Transformer, num_ranks: int, pieces: tuple[Piece, ...] = ()
) -> StepGraph:
    """Build the workload of one step on ``num_ranks`` ranks.

    ``pieces`` are what a server computes in one pass; without them all sequences are alike.
    """
    layout = Layout(model, num_ranks)
    steps = []
    for stage in range(model.pp):
        ops = Stage(model, layout, stage, pieces).ops()
        steps.append(RankStep(stage_ranks(model, num_ranks, stage), tuple(ops)))
    return StepGraph(
        name,
        num_ranks,
        tuple(steps),
        layout.groups,
        fullest_memory(model, layout),
        source=f"generated: {name}",
    )


def stage_ranks(model: Transformer, num_ranks: int, stage: int) -> tuple[int, ...]:
    """Return the ranks of a stage of the pipeline."""
    block = num_ranks // model.pp
    return tuple(range(stage * block, (stage + 1) * block))


class Stage:
    """The ops of one stage of the pipeline."""

    def __init__(
        self, model: Transformer, layout: Layout, stage: int, pieces: tuple[Piece, ...] = ()
    ) -> None:
        self.model, self.layout, self.stage = model, layout, stage
        self.positions = layout.positions(stage)
        self.chunks = [layout.chunks[position] for position in self.positions]
        # whether it holds the embedding, and the head
        self.ends = 0 in self.positions, len(layout.chunks) - 1 in self.positions
        self.made = Ops(model.dtype, math=model.math)
        queries = 1 if model.mode == "decode" else model.seq // model.cp
        self.tokens = layout.micro * queries
        usual = queries if model.mode == "train" else 1  # a server asks what follows the last token
        self.scored = layout.micro * min(queries, -(-model.scored // model.cp) or usual)
        if pieces:  # of each sequence only the last token is asked for what follows it
            self.tokens = sum(piece.count * piece.queries for piece in pieces)
            self.scored = sum(piece.count for piece in pieces)
        pieces = pieces or (Piece(layout.micro, queries, model.seq),)
        self.layer = Layer(model, self.made, self.tokens, pieces)
        self._final = False  # whether this is the last backward pass of its chunk
        self._starting = False  # whether this is the first forward pass of its chunk
        self._left: dict[str, int] = {}  # by group, gradients that wait for their bucket
        self._weight_passes: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._enter(0)

    def ops(self) -> list[Op]:
        """Put the passes of all micro batches one after another, then the optimizer."""
        model, made = self.model, self.made
        if model.mode != "train":
            for micro in range(self.layout.num_micro):
                self.write(Pass("forward", micro))
            return made.ops
        for group in self.groups():
            self.write_group(group)
        self.finish()
        return made.ops

    def groups(self) -> list[tuple[Pass, ...]]:
        """Return the passes of a training step in order, those together that overlap."""
        return PassOrder.of(self.model, self.stage, self.layout.num_micro).passes()

    def write_group(self, group: Sequence[Pass], *, alone: bool = False) -> None:
        """Write passes that overlap: each computes while another one exchanges tokens of experts.

        They are written in turns, each up to its next exchange; ``alone`` without what they get
        from other stages. None waits for ops of another one, whatever was written last.
        """
        made, pieces = self.made, []
        start = len(made.ops)
        for each in group:
            first = len(made.ops)
            (self.write_alone if alone else self.write)(each)
            for number in range(first, len(made.ops)) if first > start else ():
                op = made.ops[number]
                own = tuple(n for n in op.after if not start <= n < first)
                made.ops[number] = replace(op, after=own)
            ends = [
                number + 1
                for number, op in enumerate(made.ops[first:], first)
                if op.collective is not None and op.collective.group == "ep"
            ]
            pieces.append([range(*span) for span in pairwise([first, *ends, len(made.ops)])])
        if len(group) == 1:
            return
        order = [
            n for turn in zip_longest(*pieces, fillvalue=range(0)) for span in turn for n in span
        ]
        place = {old: start + new for new, old in enumerate(order)}
        made.ops[start:] = [
            replace(
                made.ops[old], after=tuple(sorted(place.get(n, n) for n in made.ops[old].after))
            )
            for old in order
        ]
        made.awaited = tuple(place.get(n, n) for n in made.awaited)

    def write(self, each: Pass) -> None:
        """Write one pass, with what it gets from other stages and gives them."""
        got = self.receive(each) if each.part != "weight" else -1
        self.write_alone(each, got, first=self.is_first(each), final=self.is_final(each))
        if each.part != "weight":
            self.send(each, self.made.last_kernel)

    def is_first(self, each: Pass) -> bool:
        """Return whether a pass is the first one of its chunk."""
        return each.micro == 0

    def is_final(self, each: Pass) -> bool:
        """Return whether a backward pass is the last one of its chunk."""
        backwards = self.model.schedule == "gpipe" and self.model.pp > 1
        many = self.layout.num_micro // (2 if self.model.is_dual else 1)
        return each.micro == (0 if backwards else many - 1)

    def write_alone(
        self, each: Pass, got: int = -1, *, first: bool = False, final: bool = False
    ) -> None:
        """Write one pass behind ``got``, the ``first`` or ``final`` of its chunk or neither."""
        self._starting, self._final = first, final
        self.made.phase = "forward" if each.forward else "backward"
        self._enter(each.chunk)
        if each.part == "weight":
            for write in self._weight_passes.pop((each.micro, each.chunk)):
                write()
            return
        if each.part == "input":
            self.layer.deferred = self._weight_passes[each.micro, each.chunk] = []
        (self._forward if each.forward else self._backward)(got)
        self.layer.deferred = None

    def finish(self) -> None:
        """Write what follows all passes: gradients of tied weights, then the optimizer."""
        self.made.phase = "optimizer"
        if self.model.is_dual and (self.model.trains_weights or self.model.lora):
            # Exchange gradients with the stage opposite, which holds the same layers.
            made, model = self.made, self.model
            item = int(item_bytes(model.grad_dtype)) if model.grad_dtype else made.item
            opposite, nbytes = model.pp - 1 - self.stage, self._held() * item
            needed = self._last_reduction(), made.last_kernel
            made.collective("send", nbytes, "pp", peer=opposite, after=needed, stream="mirror")
            made.collective("recv", nbytes, "pp", peer=opposite, stream=_GRADIENTS)
        self._optimizer()

    def _enter(self, chunk: int) -> None:
        """Turn to a chunk of layers: the first has the embedding, the last of all the head."""
        self.layers = self.chunks[chunk]
        self.first = self.positions[chunk] == 0
        self.last = self.positions[chunk] == len(self.layout.chunks) - 1

    @property
    def message(self) -> int:
        """Bytes that a stage sends to the next one: with sequence parallelism its own part."""
        return self.layer.rows * self.model.hidden * self.made.item

    def receive(self, each: Pass) -> int:
        """Write what a pass gets from another stage; -1 where it begins here."""
        made = self.made
        made.phase = "forward" if each.forward else "backward"
        self._enter(each.chunk)
        way, group = (1, "pp") if each.forward else (-1, "pp back")
        if self.first if each.forward else self.last:
            return -1
        came = self.layout.stage_of(self.positions[each.chunk] - way, each.chunk)
        stream = f"{group} from {came}"
        return made.collective("recv", self.message, group, peer=came, stream=stream)

    def send(self, each: Pass, done: int) -> None:
        """Write what a pass gives to another stage, if any."""
        made = self.made
        self._enter(each.chunk)
        way, group = (1, "pp") if each.forward else (-1, "pp back")
        if self.last if each.forward else self.first:
            return
        goes = self.layout.stage_of(self.positions[each.chunk] + way, each.chunk)
        stream = f"{group} to {goes}"
        made.collective("send", self.message, group, peer=goes, after=done, stream=stream)

    # Weights that data-parallel ranks share

    def _shares(self, layer: int) -> Shares:
        """Return the weights of a layer by the group of ranks that have the same ones.

        Experts are shared by fewer ranks than the rest: each of ``ep`` has others.
        """
        weights = self.model.layer_weights(self.model.kinds[layer])
        return self._by_group(weights.dense, weights.expert)

    def _gradients(self, layer: int) -> Shares:
        """Return the gradients of a layer: those of its adapters, if it has some."""
        if self.model.lora:
            return {"dp": self.model.adapter_weights(self.model.kinds[layer])}
        return self._shares(layer)

    def _by_group(self, dense: int, expert: int = 0) -> Shares:
        if "edp" not in self.layout.groups:
            return {"dp": dense + expert}
        return {"dp": dense, "edp": expert} if expert else {"dp": dense}

    @property
    def _end_weights(self) -> int:
        """Parameters of the embedding, or of the head, on one rank."""
        return self.model.vocab_of_rank * self.model.hidden

    def _end_gradients(self) -> Shares:
        """Return the gradients of the embedding, or of the head, by group."""
        return self._by_group(0 if self.model.lora else self._end_weights)

    def _sharded(self, group: str) -> tuple[str, int]:
        """Return the group among which weights of ``group`` are shared out, and its size."""
        among = _SHARDS[group] if _SHARDS[group] in self.layout.groups else group
        return among, self.layout.groups[among].size

    def _shared(self, group: str, nbytes: int, kind: str, *, after: int = -1) -> int:
        """Add a collective of the ranks that have the same weights; all take turns on a stream."""
        return self.made.collective(
            kind, nbytes, group, after=after, stream=_GRADIENTS, independent=True
        )

    def _gather(self, shares: Shares, *, after: int = -1) -> int:
        """Bring weights together that are shared out; -1 where none are."""
        gathered = -1
        for group, weights in shares.items():
            among, size = self._sharded(group)
            if size > 1:
                nbytes = weights * self.made.weight_item
                gathered = self._shared(among, nbytes, "all_gather", after=after)
                if self.made.dtype == "fp8":
                    self.made.in_fp8(gathered)
        return gathered

    def _gathers(self, *, forward: bool) -> bool:
        """Return whether this pass gathers the weights of its layers."""
        model = self.model
        if model.mode != "train":
            return model.zero_stage == 3
        if model.zero_stage == 3:
            return forward or model.reshard
        once = model.zero_stage in (1, 2) and model.overlap_param and model.trains_weights
        return once and not model.param_broadcast and forward and self._starting

    def _layers_with_weights(self, *, forward: bool) -> Iterator[tuple[int, int]]:
        """Go through the layers of a pass with the op that has each one's weights, -1 for none.

        The weights of a layer are gathered when ``prefetch`` layers are still before it, as FSDP2
        does: what it copies them out of is used again for later ones.
        """
        order = list(self.layers) if forward else list(reversed(self.layers))
        if not self._gathers(forward=forward):
            yield from ((layer, -1) for layer in order)
            return
        ahead = self.model.prefetch if self.model.zero_stage == 3 else len(order)
        gathered = [self._gather(self._shares(layer)) for layer in order[:ahead]]
        for index, layer in enumerate(order):
            if index + ahead < len(order):
                later = self._shares(order[index + ahead])
                gathered.append(self._gather(later, after=self.made.last_kernel))
            yield layer, gathered[index]

    # Passes

    def _forward(self, got: int) -> None:
        made = self.made
        made.wait_for(got)
        if self.first:
            self._embedding()
        for layer, gathered in self._layers_with_weights(forward=True):
            self.layer.forward(gathered, self.model.kinds[layer])
        if self.last:
            modules = self.model.mtp if self.model.mode == "train" else 0
            for number in range(modules):
                self._next_token_module(again=number > 0)
            self._head(again=modules > 0)

    def _embedding(self) -> None:
        model, made = self.model, self.made
        if self._gathers(forward=True):
            made.wait_for(self._gather(self._by_group(self._end_weights)))
        vocab = model.vocab if model.mode != "train" else model.vocab_of_rank
        done = made.kernel("embedding", "embedding", self.tokens, vocab, model.hidden, 1)
        if model.mode == "train":  # every rank has looked up its part of the vocabulary
            made.wait_for(self.layer.reduce(model.hidden, done))

    def _head(self, *, again: bool = False) -> None:
        """Write the head and the loss; ``again`` behind another head of the same weights."""
        model, made, layer = self.model, self.made, self.layer
        kept = again and not (model.zero_stage == 3 and model.reshard)
        vocab = model.vocab_of_rank
        made.kernel("norm", "norm", layer.rows if model.mode == "train" else self.tokens,
                    model.hidden)  # fmt: skip
        if self._gathers(forward=True) and not (model.tied and self.first) and not kept:
            made.wait_for(self._gather(self._by_group(self._end_weights)))
        if layer.scatters and model.mode == "train":
            made.wait_for(layer.gather(model.hidden, product=False))
        # Quantized checkpoints keep the weights of the head as they were.
        math = model.math if model.mode == "train" else model.dtype
        done = made.gemm("head", self.scored, vocab, model.hidden, dtype=math)
        if model.mode == "train":
            if model.tp > 1:  # largest value, sum and the target's value of each token, in fp32
                done = made.collective("all_reduce", 12 * self.scored, "tp", after=done)
            if model.fused_loss:
                made.kernel("loss", "softmax", self.scored, vocab, after=done)
                return
            made.wait_for(done)
            for name, nbytes in _LOSS_PASSES:
                made.kernel(name, "elementwise", nbytes=nbytes * self.scored * vocab)

    def _head_backward(self) -> None:
        model, made, layer = self.model, self.made, self.layer
        vocab = model.vocab_of_rank
        if model.fused_loss:
            made.kernel("loss backward", "softmax-backward", self.scored, vocab)
        else:
            for name, nbytes in _LOSS_PASSES_BACKWARD:
                made.kernel(name, "elementwise", nbytes=nbytes * self.scored * vocab)
        done = made.gemm("head input gradient", self.scored, model.hidden, vocab)
        summed = layer.reduce(model.hidden, done, self.scored)
        layer.weight_gradient("head", vocab, model.hidden, rows=self.scored)
        made.kernel("norm backward", "norm-backward", layer.rows, model.hidden, after=summed)

    def _next_token_module(self, *, again: bool) -> None:
        """Predict one more token (arXiv 2412.19437): join, one layer, the head."""
        model, made, layer = self.model, self.made, self.layer
        for _ in range(2):
            made.kernel("norm", "norm", layer.rows, model.hidden)
        if self._gathers(forward=True):
            made.wait_for(self._gather(self._module_shares()))
        summed = layer.row("next token join", model.hidden, 2 * model.hidden // model.tp)
        layer.forward(summed, model.kinds[-1])
        self._head(again=again)

    def _next_token_module_backward(self) -> None:
        model, made, layer = self.model, self.made, self.layer
        self._head_backward()
        if self._gathers(forward=False):
            made.wait_for(self._gather(self._module_shares()))
        layer.recompute(-1, model.kinds[-1])
        layer.backward(-1, model.kinds[-1])
        layer.row_backward("next token join", model.hidden, 2 * model.hidden // model.tp)
        for _ in range(2):
            made.kernel("norm backward", "norm-backward", layer.rows, model.hidden)
        self._reduce({} if model.lora else self._module_shares())

    def _module_shares(self) -> Shares:
        """Return the weights of a module that predicts a further token."""
        model = self.model
        weights = model.layer_weights(model.kinds[-1])
        join = 2 * model.hidden * model.hidden // model.tp
        return self._by_group(weights.dense + join, weights.expert)

    def _backward(self, got: int) -> None:
        model, made = self.model, self.made
        made.wait_for(got)
        if self.last:
            self._head_backward()
            self._accumulate(self._end_gradients())
            if not (model.tied and self.first):
                self._reduce(self._end_gradients())
            for _ in range(model.mtp):
                self._next_token_module_backward()
        recomputed = model.recompute_layers or len(self.layers)
        for index, (layer, gathered) in enumerate(self._layers_with_weights(forward=False)):
            kind = model.kinds[layer]
            # the first layers of a stage are recomputed, if not all are
            if model.recompute != "full" or len(self.layers) - index <= recomputed:
                self.layer.recompute(gathered, kind)
            self.layer.backward(gathered, kind)
            self._accumulate(self._shares(layer))
            ends = index + 1 == len(self.layers) and not self.first
            self._reduce(self._gradients(layer), last=ends)
        if self.first:
            if model.trains_weights:
                rows = self.tokens, model.vocab_of_rank, model.hidden, 1
                made.kernel("embedding backward", "embedding-backward", *rows)
                self._accumulate(self._end_gradients())
            self._reduce(self._end_gradients(), last=True)

    def _accumulate(self, shares: Shares) -> None:
        """Add gradients to those of earlier micro batches, where products do not."""
        if self.model.fused_accumulation or self._starting or not self.model.trains_weights:
            return
        weights = sum(shares.values())
        self.layer.put_off(lambda: self._add_gradients(weights))

    def _add_gradients(self, weights: int) -> None:
        self.made.moving("accumulate gradients", 3 * weights)

    def _reduce(self, shares: Shares, *, last: bool = False) -> None:
        """Return gradients away once they are written, which may be put off."""
        if not (self.model.trains_weights or self.model.lora):
            return
        final = self._final
        self.layer.put_off(lambda: self._reduced(shares, last=last, final=final))

    def _reduced(self, shares: Shares, *, last: bool, final: bool) -> None:
        """Reduce gradients: scattered layer by layer, or in buckets once they are whole."""
        model, made = self.model, self.made
        scatters = model.zero_stage >= 2
        if not (scatters or final):
            return
        item = int(item_bytes(model.grad_dtype)) if model.grad_dtype else made.item
        for group in (*shares, *(self._left.keys() - shares if last else ())):
            if self.layout.groups[group].size < 2:
                continue
            left = self._left.get(group, 0) + shares.get(group, 0) * item
            if model.zero_stage == 3:
                self._reduce_bucket(group, left)
                left = 0
            hides = model.overlap_grad
            while (hides and left >= model.bucket) or (last and left):
                size = min(left, model.bucket) if hides else left
                self._reduce_bucket(group, size)
                left -= size
            self._left[group] = left

    def _reduce_bucket(self, group: str, nbytes: int) -> None:
        if not nbytes:
            return
        needed = self.made.last_kernel
        if self.model.zero_stage == 0:
            self._shared(group, nbytes, "all_reduce", after=needed)
            return
        among, size = self._sharded(group)
        if size > 1:
            self._shared(among, nbytes, "reduce_scatter", after=needed)
        if among in _REPLICAS:  # replicas of the shards sum what each has
            share = -(-nbytes // size)
            self._shared(_REPLICAS[among], share, "all_reduce", after=needed)

    def _held(self) -> int:
        """Parameters that this rank's optimizer changes."""
        model = self.model
        layers = [layer for chunk in self.chunks for layer in chunk]
        shares = [self._gradients(layer) for layer in layers]
        if not model.lora:
            first, last = self.ends
            ends = first + last - (first and last and model.tied)
            shares += [self._by_group(self._end_weights)] * ends
            shares += [self._module_shares()] * (model.mtp if last else 0)
        divides = model.zero_stage > 0
        return sum(
            weights // (self._sharded(group)[1] if divides else 1)
            for share in shares
            for group, weights in share.items()
        )

    def _optimizer(self) -> None:
        """AdamW in one pass: gradient, weight and two moments are read, three of them written."""
        made, model = self.made, self.model
        if model.frozen and not model.lora:
            return
        reduced = self._last_reduction()
        item = int(item_bytes(model.grad_dtype)) if model.grad_dtype else made.item
        ends = self.stage in (0, model.pp - 1) and model.trains_weights
        if "embedding" in self.layout.groups and ends:
            nbytes = self._end_weights * item // (self.layout.shard if model.zero_stage > 1 else 1)
            needed = (reduced, made.last_kernel)
            reduced = made.collective(
                "all_reduce", nbytes, "embedding", after=needed, stream=_GRADIENTS
            )
        held = self._held()
        if model.clip:
            made.kernel("gradient norm", "reduction", nbytes=4 * held, after=reduced)
            made.kernel("clip", "elementwise", nbytes=8 * held)
        done = made.kernel("adamw", "optimizer", nbytes=28 * held, after=reduced)
        at_end = model.param_broadcast or not model.overlap_param
        if model.zero_stage in (1, 2) and at_end and model.trains_weights:
            self._gather_all(done)

    def _gather_all(self, done: int) -> None:
        """Gather all weights behind the optimizer; the step ends when they are there."""
        model = self.model
        total: dict[str, int] = {}
        first, last = self.ends
        ends = first + last - (first and last and model.tied)
        modules = model.mtp if last else 0
        every = [self._shares(layer) for chunk in self.chunks for layer in chunk]
        every += [self._by_group(self._end_weights)] * ends + [self._module_shares()] * modules
        for share in every:
            for group, weights in share.items():
                total[group] = total.get(group, 0) + weights
        if not model.param_broadcast:
            self._gather(total, after=done)
            return
        layers = sum(len(chunk) for chunk in self.chunks) + modules
        tensors = layers * _LAYER_TENSORS + ends
        for group, weights in total.items():
            among, size = self._sharded(group)
            owners = min(size, tensors) if size > 1 else 0  # every tensor has one
            for owner in range(owners):
                nbytes = weights * self.made.weight_item // owners
                self.made.collective(
                    "broadcast", nbytes, among, after=done, peer=owner, stream=_GRADIENTS,
                    independent=True,
                )  # fmt: skip

    def _last_reduction(self) -> int:
        """Return the number of the last sum of gradients, -1 without one.

        Sums follow each other on one stream, so the end of the last is the end of them all. What
        a stage sends to another behind them is none of the optimizer's.
        """
        ops = self.made.ops
        return max((n for n, op in enumerate(ops) if op.stream == _GRADIENTS), default=-1)
