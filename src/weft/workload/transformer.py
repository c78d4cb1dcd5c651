"""Transformers, dense and of experts, trained or serving: what each rank does in one step.

Ranks are numbered with tensor parallelism innermost, then data parallelism, then the stages of a
pipeline outermost, as Megatron does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.errors import UsageError
from weft.schedule.values import Group
from weft.workload.building import BUCKET, ITEM_BYTES, Ops
from weft.workload.pipeline import Pass, passes
from weft.workload.step import Memory, Op, Step, Workload


@dataclass(frozen=True, slots=True)
class Transformer:
    """Shape of a model, how it is run and how it is spread over ranks.

    ``batch`` is sequences of the whole job, of ``seq`` tokens. ``mode`` is ``train``, ``prefill``
    or ``decode`` (one token a sequence that sees ``seq`` before it). ``fsdp`` shares weights among
    data-parallel ranks, ``recompute`` computes activations twice instead of keeping them. ``math``
    is the dtype of products where it is another than that of the data, ``flash`` says that
    attention keeps its scores to itself, ``frozen`` that weights get no gradients (adapters are
    too small to count), ``scored`` how many tokens of a sequence are predicted, if not all,
    ``interleave`` in how many chunks a stage of the pipeline holds its layers. ``rotary`` models
    turn queries and keys by their positions; ``dropout`` runs kernels of its own, ``clip`` looks
    at the norm of all gradients.
    """

    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    kv_heads: int = 0
    gated: bool = False
    causal: bool = True
    experts: int = 0
    topk: int = 2
    batch: int = 8
    micro_batch: int = 0
    mode: str = "train"
    dtype: str = "bf16"
    tp: int = 1
    pp: int = 1
    ep: int = 1
    fsdp: bool = False
    recompute: bool = False
    math: str = ""
    flash: bool = True
    frozen: bool = False
    scored: int = 0
    interleave: int = 1
    rotary: bool = False
    dropout: bool = False
    clip: bool = False

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads

    @property
    def qkv(self) -> int:
        """Width of queries, keys and values together."""
        return (self.heads + 2 * (self.kv_heads or self.heads)) * self.head_dim

    @property
    def attention_weights(self) -> int:
        """Parameters of attention and norms of a layer."""
        return self.hidden * self.qkv + self.heads * self.head_dim * self.hidden + 2 * self.hidden

    @property
    def mlp_weights(self) -> int:
        """Parameters of one expert, or of the whole inner layer."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_weights(self) -> int:
        """Parameters of a layer."""
        if not self.experts:
            return self.attention_weights + self.mlp_weights
        return self.attention_weights + self.experts * (self.mlp_weights + self.hidden)


@dataclass(frozen=True, slots=True)
class Piece:
    """``count`` sequences of a served batch: each brings ``queries`` tokens and sees ``keys``."""

    count: int
    queries: int
    keys: int


def build(
    name: str, model: Transformer, num_ranks: int, pieces: tuple[Piece, ...] = ()
) -> Workload:
    """Make the workload of one step on ``num_ranks`` ranks.

    ``pieces`` are what a server computes in one pass; without them all sequences are alike.
    """
    spread = _Spread(model, num_ranks)
    steps = []
    for stage in range(model.pp):
        body = _Stage(model, spread, stage, pieces)
        block = num_ranks // model.pp
        steps.append(Step(tuple(range(stage * block, (stage + 1) * block)), tuple(body.ops())))
    return Workload(
        name,
        num_ranks,
        tuple(steps),
        spread.groups,
        _memory(model, spread),
        source=f"generated: {name}",
    )


class _Spread:
    """How ranks share the work; refuses what does not divide."""

    def __init__(self, model: Transformer, num_ranks: int) -> None:
        inner = model.tp * model.pp
        if num_ranks % inner:
            raise UsageError(
                f"{num_ranks} ranks do not divide into tp {model.tp} times pp {model.pp}",
                f"Use a multiple of {inner}.",
            )
        self.dp = num_ranks // inner
        if model.batch < self.dp:
            raise UsageError(
                f"{self.dp} data-parallel ranks are more than the {model.batch} samples of a batch",
                f"Use --set batch={self.dp} or more, or more of tp and pp.",
            )
        if model.batch % self.dp:
            raise UsageError(
                f"a batch of {model.batch} does not divide among {self.dp} data-parallel ranks",
                f"Use --set batch={model.batch // self.dp * self.dp}.",
            )
        for what, size in (("heads", model.heads), ("ffn", model.ffn)):
            if size % model.tp:
                raise UsageError(f"{size} {what} do not divide among tp {model.tp}")
        if model.ep > 1 and (not model.experts or model.experts % model.ep or self.dp % model.ep):
            raise UsageError(
                f"ep {model.ep} must divide the {model.experts} experts and the {self.dp} "
                "data-parallel ranks"
            )
        if model.layers < model.pp:
            raise UsageError(f"{model.pp} stages are more than {model.layers} layers")
        local = model.batch // self.dp
        self.micro = model.micro_batch or (1 if model.pp > 1 else local)
        if local % self.micro:
            raise UsageError(f"{local} samples a rank do not divide into batches of {self.micro}")
        self.num_micro = local // self.micro
        if model.interleave > 1 and (
            self.num_micro % model.pp or model.layers < model.pp * model.interleave
        ):
            raise UsageError(
                f"{self.num_micro} micro batches and {model.layers} layers cannot be interleaved "
                f"{model.interleave} times over {model.pp} stages",
                "Use a multiple of pp micro batches, and a layer for every chunk.",
            )
        self.groups = {
            "tp": Group(model.tp),
            "dp": Group(self.dp, model.tp),
            "ep": Group(model.ep, model.tp),
            "pp": Group(model.pp, model.tp * self.dp),
            "pp back": Group(model.pp, model.tp * self.dp),
        }


def _split(total: int, parts: int) -> list[int]:
    return [total // parts + (place < total % parts) for place in range(parts)]


class _Stage:
    """The ops of one stage of the pipeline."""

    def __init__(
        self, model: Transformer, spread: _Spread, stage: int, pieces: tuple[Piece, ...] = ()
    ) -> None:
        self.model, self.spread, self.stage = model, spread, stage
        every = _split(model.layers, model.pp * model.interleave)
        self.chunks = every[stage :: model.pp]  # layers of each
        self._enter(0)
        self.made = Ops(model.dtype, math=model.math)
        self.queries = 1 if model.mode == "decode" else model.seq
        self.tokens = spread.micro * self.queries
        self.scored = spread.micro * min(self.queries, model.scored or self.queries)
        if pieces:  # of each sequence only the last token is asked for what follows it
            self.tokens = sum(piece.count * piece.queries for piece in pieces)
            self.scored = sum(piece.count for piece in pieces)
        self.pieces = pieces or (Piece(spread.micro, self.queries, model.seq),)
        self._final = False  # whether this is the last backward pass of the step
        self._left = 0  # gradients that wait for their bucket

    def ops(self) -> list[Op]:
        """Put the passes of all micro batches one after another, then the optimizer."""
        model, made = self.model, self.made
        if model.mode != "train":
            for micro in range(self.spread.num_micro):
                self._pass(Pass(forward=True, micro=micro))
            return made.ops
        order = passes(model.pp, self.stage, self.spread.num_micro, model.interleave)
        left = dict.fromkeys(range(model.interleave), self.spread.num_micro)
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

    def _gather(self) -> int:
        """Bring the weights of a layer together where they are shared out."""
        model = self.model
        if not model.fsdp or self.spread.dp < 2:
            return -1
        nbytes = self._layer_weights() * self.made.item
        return self.made.collective("all_gather", nbytes, "dp")

    def _layer_weights(self) -> int:
        model = self.model
        held = model.attention_weights // model.tp
        mlp = model.mlp_weights // model.tp
        if not model.experts:
            return held + mlp
        return held + model.experts // model.ep * mlp

    def _reduced(self, nbytes: int, needed: int) -> int:
        """Sum over the ranks that share each tensor; a single rank has nothing to sum."""
        if self.model.tp < 2:
            return -1
        return self.made.collective("all_reduce", nbytes, "tp", after=needed)

    def _forward(self, got: int) -> None:
        model, made, tokens = self.model, self.made, self.tokens
        if self.first:
            made.kernel("embedding", "embedding", tokens, model.vocab, model.hidden, 1)
        gathered = self._gather()
        for layer in range(self.layers):
            ahead = self._gather() if layer + 1 < self.layers else -1
            self._layer_forward(gathered if gathered >= 0 else got)
            gathered, got = ahead, -1
        if self.last:
            self._head()

    def _layer_forward(self, needed: int) -> None:
        model, made, tokens = self.model, self.made, self.tokens
        size, width = tokens * model.hidden * made.item, model.hidden
        made.kernel("norm", "norm", tokens, width, after=needed)
        made.gemm("qkv", tokens, model.qkv // model.tp, width)
        self._positions("")
        self._attention()
        done = made.gemm("projection", tokens, width, width // model.tp)
        summed = self._reduced(size, done)
        self._dropped()
        made.moving("add", 3 * tokens * width, after=summed)
        made.kernel("norm", "norm", tokens, width)
        done = self._experts() if model.experts else self._mlp()
        summed = self._reduced(size, done) if not model.experts else -1
        self._dropped()
        made.moving("add", 3 * tokens * width, after=summed if summed >= 0 else done)

    def _positions(self, way: str) -> None:
        """Turn queries and keys by their place, or bring heads apart where attention needs it."""
        model = self.model
        if model.rotary or not model.flash:
            name = ("rotate" if model.rotary else "split heads") + way
            self.made.moving(name, 2 * self.tokens * model.qkv // model.tp)

    def _dropped(self, way: str = "") -> None:
        """Drop some of what goes back into the residual: read, written, and a mask."""
        if self.model.dropout:
            self.made.moving(f"dropout{way}", 3 * self.tokens * self.model.hidden)

    def _attention(self) -> None:
        made = self.made
        if self.model.flash:
            for piece in self.pieces:
                made.kernel("attention", "attention", *self._attention_shape(piece))
            return
        batch, heads, _, queries, keys, dim, _ = self._attention_shape(self.pieces[0])
        scores = batch * heads * queries * keys
        made.bmm("scores", batch * heads, queries, keys, dim)
        made.moving("mask", 2 * scores)
        made.kernel("softmax", "softmax", batch * heads * queries, keys)
        made.moving("dropout", 2 * scores)
        made.bmm("values", batch * heads, queries, dim, keys)

    def _attention_backward(self) -> None:
        made = self.made
        if self.model.flash:
            shape = self._attention_shape(self.pieces[0])
            made.kernel("attention backward", "attention-backward", *shape)
            return
        batch, heads, _, queries, keys, dim, _ = self._attention_shape(self.pieces[0])
        scores = batch * heads * queries * keys
        made.bmm("values input gradient", batch * heads, queries, keys, dim)
        made.bmm("values gradient", batch * heads, keys, dim, queries)
        made.moving("dropout backward", 3 * scores)
        made.kernel("softmax backward", "softmax-backward", batch * heads * queries, keys)
        made.moving("mask backward", 2 * scores)
        made.bmm("queries gradient", batch * heads, queries, dim, keys)
        made.bmm("keys gradient", batch * heads, keys, dim, queries)

    def _attention_shape(self, piece: Piece) -> tuple[int, ...]:
        model = self.model
        heads, kv = model.heads // model.tp, (model.kv_heads or model.heads) // model.tp
        causal = int(model.causal and model.mode != "decode")
        return (
            *(piece.count, heads, max(1, kv), piece.queries, piece.keys, model.head_dim),
            causal,
        )

    def _mlp(self) -> int:
        model, made, tokens = self.model, self.made, self.tokens
        inner = model.ffn // model.tp
        made.gemm("up", tokens, inner * (2 if model.gated else 1), model.hidden)
        made.moving("activation", tokens * inner * (3 if model.gated else 2))
        return made.gemm("down", tokens, model.hidden, inner)

    def _experts(self, *, factor: int = 1) -> int:
        """Route tokens to experts, on other ranks where those are, and bring them back."""
        model, made, tokens = self.model, self.made, self.tokens
        made.gemm("router", tokens, model.experts, model.hidden)
        made.kernel("routing", "softmax", tokens, model.experts)
        moved = tokens * model.topk * model.hidden
        sent = made.moving("dispatch", 2 * moved, family="copy")
        if model.ep > 1:
            sent = made.collective("all_to_all", moved * made.item, "ep", after=sent)
        else:
            sent = -1
        shape = (
            *(tokens * model.ep, model.hidden, model.ffn, model.topk, model.experts),
            *(model.tp, model.ep),
        )
        for _ in range(factor):
            done = made.kernel("experts", "moe", *shape, after=sent)
            sent = -1
        if model.ep > 1:
            done = made.collective("all_to_all", moved * made.item, "ep", after=done)
        combined = made.moving(
            "combine", 2 * moved, family="copy", after=done if model.ep > 1 else -1
        )
        return (
            combined if model.tp < 2 else self._reduced(moved // model.topk * made.item, combined)
        )

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
            self._product_backward("head", self.scored, model.vocab // model.tp, model.hidden)
            made.kernel("norm backward", "norm-backward", tokens, model.hidden)
        gathered = self._gather()
        for layer in range(self.layers):
            ahead = self._gather() if layer + 1 < self.layers else -1
            needed = gathered if gathered >= 0 else got
            if model.recompute:
                self._layer_forward(needed)
                needed = -1
            self._layer_backward(needed)
            self._gradients(last_layer=layer + 1 == self.layers)
            gathered, got = ahead, -1
        if self.first:
            rows = tokens, model.vocab, model.hidden, 1
            made.kernel("embedding backward", "embedding-backward", *rows)

    def _product_backward(self, name: str, m: int, n: int, k: int, *, after: int = -1) -> int:
        made = self.made
        done = made.gemm(f"{name} input gradient", m, k, n, after=after)
        return done if self.model.frozen else made.gemm(f"{name} weight gradient", k, n, m)

    def _layer_backward(self, needed: int) -> None:
        model, made, tokens = self.model, self.made, self.tokens
        width, inner = model.hidden, model.ffn // model.tp
        size = tokens * width * made.item
        self._dropped(" backward")
        if model.experts:
            made.moving("add backward", 2 * tokens * width, after=needed)
            done = self._experts(factor=2)
        else:
            self._product_backward("down", tokens, width, inner, after=needed)
            made.moving("activation backward", tokens * inner * (5 if model.gated else 3))
            done = self._product_backward("up", tokens, inner * (2 if model.gated else 1), width)
        summed = self._reduced(size, done)
        made.kernel("norm backward", "norm-backward", tokens, width, after=max(summed, -1))
        self._dropped(" backward")
        self._product_backward("projection", tokens, width, width // model.tp)
        self._attention_backward()
        self._positions(" backward")
        done = self._product_backward("qkv", tokens, model.qkv // model.tp, width)
        summed = self._reduced(size, done)
        made.kernel("norm backward", "norm-backward", tokens, width, after=max(summed, -1))
        made.moving("add backward", 3 * tokens * width)

    def _gradients(self, *, last_layer: bool) -> None:
        """Give the gradients of a layer away: scattered, or in buckets once they are whole."""
        model, made, needed = self.model, self.made, self.made.last_kernel
        nbytes = self._layer_weights() * made.item
        if self.spread.dp < 2 or model.frozen:
            return
        if model.fsdp:
            made.collective("reduce_scatter", nbytes, "dp", after=needed)
        elif self._final:
            self._left += nbytes
            while self._left >= BUCKET or (last_layer and self._left):
                size = min(self._left, BUCKET)
                self._left -= size
                made.collective("all_reduce", size, "dp", after=needed)

    def _optimizer(self) -> None:
        """AdamW in one pass: gradient, weight and two moments are read, three of them written."""
        made, model = self.made, self.model
        held = sum(self.chunks) * self._layer_weights()
        if self.stage in (0, model.pp - 1):
            held += model.vocab * model.hidden // model.tp
        if model.frozen:
            return
        shared = self.spread.dp if model.fsdp else 1
        if model.clip:
            made.kernel("gradient norm", "reduction", nbytes=4 * held // shared)
            made.kernel("clip", "elementwise", nbytes=8 * held // shared)
        waits = [n for n, op in enumerate(made.ops) if op.kind == "collective"][-1:]
        made.kernel(
            "adamw", "optimizer", nbytes=28 * held // shared, after=waits[0] if waits else -1
        )


def _memory(model: Transformer, spread: _Spread) -> Memory:
    """Weights, gradients and moments of the fullest stage; activations as arXiv 2205.05198."""
    item = ITEM_BYTES[model.dtype]
    layers = _split(model.layers, model.pp)[0]
    mlp = model.mlp_weights // model.tp * max(1, model.experts // model.ep)
    held = layers * (model.attention_weights // model.tp + mlp)
    held += (2 if model.pp == 1 else 1) * model.vocab * model.hidden // model.tp
    shared = spread.dp if model.fsdp else 1
    tokens = spread.micro * (1 if model.mode == "decode" else model.seq)
    if model.mode != "train":
        kv = 2 * (model.kv_heads or model.heads) * model.head_dim // model.tp
        cache = spread.num_micro * spread.micro * model.seq * kv * layers * item
        return Memory(
            weights=held * item, activations=8 * tokens * model.hidden * item, other=cache
        )
    # 34 bytes a token and hidden element in half precision without the scores, two of them kept
    # whole; a stage keeps as many micro batches as stages follow it.
    each = tokens * model.hidden * (10 + 24 / model.tp) * item / 2
    flying = min(model.pp, spread.num_micro)
    kept = tokens * model.hidden * item if model.recompute else each
    activations = int(flying * layers * kept + (each if model.recompute else 0))
    activations += tokens * model.vocab // model.tp * (item + 4)
    if model.frozen:
        return Memory(weights=held * item // shared, activations=activations)
    return Memory(
        weights=held * item // shared,
        gradients=held * item // shared,
        optimizer=held * 12 // shared if item < 4 else held * 8 // shared,
        activations=activations,
        other=2 * (held // layers) * item if model.fsdp else 0,
    )


_GPT = Transformer(768, 12, 12, 3072, 50257, 1024)
_LLAMA = Transformer(4096, 32, 32, 14336, 128256, 8192, 8, gated=True, rotary=True)
MODELS = {
    "gpt2": _GPT,
    "gpt2-medium": replace(_GPT, hidden=1024, layers=24, heads=16, ffn=4096),
    "gpt2-large": replace(_GPT, hidden=1280, layers=36, heads=20, ffn=5120),
    "gpt2-xl": replace(_GPT, hidden=1600, layers=48, heads=25, ffn=6400),
    "gpt3-175b": replace(
        _GPT, hidden=12288, layers=96, heads=96, ffn=49152, seq=2048, batch=64, vocab=51200
    ),
    "bert-base": replace(_GPT, vocab=30522, seq=512, causal=False),
    "bert-large": replace(
        _GPT, hidden=1024, layers=24, heads=16, ffn=4096, vocab=30522, seq=512, causal=False
    ),
    "xlnet-base": replace(_GPT, vocab=32000, seq=512, causal=False),
    "llama-7b": replace(_LLAMA, ffn=11008, vocab=32000, seq=4096, kv_heads=32),
    "llama-8b": _LLAMA,
    "llama-13b": replace(
        _LLAMA, hidden=5120, layers=40, heads=40, ffn=13824, vocab=32000, seq=4096, kv_heads=40
    ),
    "llama-70b": replace(_LLAMA, hidden=8192, layers=80, heads=64, ffn=28672),
    "llama-405b": replace(_LLAMA, hidden=16384, layers=126, heads=128, ffn=53248),
    "mixtral-8x7b": replace(_LLAMA, vocab=32000, seq=4096, experts=8),
    "mixtral-8x22b": replace(
        _LLAMA, hidden=6144, layers=56, heads=48, ffn=16384, vocab=32768, seq=4096, experts=8
    ),
}
