"""The kernels and collectives of one layer of a transformer, forward and backward.

```
 norm -> [gather] qkv -> attention -> projection [sum] -> add -> norm -> [gather] MLP [sum] -> add
```

Products whose weights the ranks of tp share are of two kinds, as in Megatron: the columns of the
first ones are shared (qkv, up), so gradients of their inputs are summed; the rows of the second
ones are (projection, down), so their results are. With sequence parallelism sums are scattered
and inputs gathered.
"""

from collections.abc import Callable
from math import ceil

from weft.hardware.dtypes import item_bytes
from weft.models.building import After, Ops
from weft.models.expert_layer import Experts
from weft.models.transformer import LayerKind, Piece, Transformer
from weft.models.transformer_layout import split

PIECES = 4  # of a product whose sum is overlapped: num_splits of Transformer Engine's userbuffers

# Megatron's fused softmax takes so many score matrices in one block of threads (for 1,024 keys:
# four warps, a row each); where their number does not divide by it, it runs torch's own ops.
FUSED_SOFTMAX_MATRICES = 4

# Elements that torch's own kernels move to turn one element of queries and keys, forward and
# backward: a negation, two joins, two products and a sum (Megatron-Core's rope_utils).
_SQUARES = 8  # bytes of a token: sums of squares of its queries and of its keys, in fp32
_TURNED = {"": 12, " backward": 14}
_CACHED_BYTES = 2  # of an element of keys and values, where the shape of a kernel has none


class Layer:
    """One layer as a rank computes it: ``tokens`` at once, in ``pieces`` of unlike keys.

    Where ``deferred`` is a list, gradients of weights are put there instead of being written.
    """

    def __init__(
        self, model: Transformer, made: Ops, tokens: int, pieces: tuple[Piece, ...]
    ) -> None:
        self.model, self.made, self.tokens, self.pieces = model, made, tokens, pieces
        self.scatters = model.sp and model.tp > 1  # ranks of tp share the sequence
        self.rows = -(-tokens // model.tp) if self.scatters else tokens  # of norms and residuals
        self.deferred: list[Callable[[], None]] | None = None
        self._experts = Experts(self)

    def forward(self, needed: After, kind: LayerKind) -> None:
        """Write the forward pass of one micro batch, behind ``needed``."""
        model, made, width = self.model, self.made, self.model.hidden
        made.wait_for(*((needed,) if isinstance(needed, int) else needed))
        self._norm()
        self._queries_keys_values()
        self._positions("")
        self._attention(kind)
        if model.parallel_block:
            self._product("projection", width, model.out_width)
            done = self._mlp(gathered=True)
            made.moving("add", 3 * self.rows * width, after=done)
        else:
            self._added(self.row("projection", width, model.out_width))
            self._norm()
            done = self._experts.forward() if kind.experts else self._mlp()
        self._added(done)

    def _norm(self) -> None:
        """Normalize the residual; servers add to it in the same kernel, in twice the passes."""
        passes = () if self.model.mode == "train" else (4,)
        self.made.kernel("norm", "norm", self.rows, self.model.hidden, *passes)

    def _added(self, summed: int) -> None:
        """Add a result to the residual: dropped from and normalized before, if the model does."""
        made, width = self.made, self.model.hidden
        made.wait_for(summed)
        self._dropped("")
        if self.model.post_norm:
            made.kernel("norm", "norm", self.rows, width)
        if self.model.mode == "train":
            made.moving("add", 3 * self.rows * width)

    def recompute(self, needed: After, kind: LayerKind) -> None:
        """Write what a backward pass computes again in front of it, if anything."""
        with self.made.recomputing():
            if self.model.recompute == "full":
                self.forward(needed, kind)
            elif self.model.recompute == "selective_op":
                self._recompute_ops(needed, kind)

    def _recompute_ops(self, needed: After, kind: LayerKind) -> None:
        """Write what a backward pass computes again where only some ops were kept.

        torchtitan's policy by op (distributed/activation_checkpoint.py) keeps results of
        attention, of scattered sums and of products but for every second one, counted in the order
        in which the model calls them. The last product is not needed again. Experts are computed
        again as a whole: grouped products are not in its list.
        """
        model, made, width = self.model, self.made, self.model.hidden
        made.wait_for(*((needed,) if isinstance(needed, int) else needed))
        first = self._single_products
        inner = [] if kind.experts else [("up", model.ffn // model.tp, width)]
        called = [*first, ("projection", width, model.out_width), *inner * (1 + model.gated)]
        again = [each if number % 2 else None for number, each in enumerate(called)]
        self._norm()
        if self.scatters:
            made.wait_for(self.gather(width))
        for each in filter(None, again[: len(first)]):
            made.gemm(each[0], self.tokens, *each[1:])
        self._positions("")
        if again[len(first)] and not self.scatters:  # else its sum was kept
            made.gemm("projection", self.tokens, width, model.out_width)
        made.moving("add", 3 * self.rows * width)
        self._norm()
        if kind.experts:
            made.wait_for(self._experts.forward())
            return
        if self.scatters:
            made.wait_for(self.gather(width))
        for each in filter(None, again[len(first) + 1 :]):
            made.gemm(each[0], self.tokens, *each[1:])
        made.moving("activation", self.tokens * inner[0][1] * (3 if model.gated else 2))

    @property
    def _single_products(self) -> list[tuple[str, int, int]]:
        """Products in front of attention as programs call them that do not join any."""
        model = self.model
        if model.kv_rank:
            wide, narrow = self._latent
            # queries first, each compressed before it is expanded
            return [*narrow[1:], wide[1], narrow[0], wide[0]]
        queries = model.heads // model.tp * model.head_dim
        values = model.kv_heads_of(model.tp) * model.value_dim
        keys = model.qkv_of(model.tp) - queries - values
        return [(name, n, model.hidden) for name, n in
                (("queries", queries), ("keys", keys), ("values", values))]  # fmt: skip

    def backward(self, needed: After, kind: LayerKind) -> None:
        """Write its backward pass."""
        model, made, rows, width = self.model, self.made, self.rows, self.model.hidden
        made.wait_for(*((needed,) if isinstance(needed, int) else needed))
        self._normed_backward()
        if model.parallel_block:
            self._mlp_backward(summed=False)
        else:
            if kind.experts:
                made.moving("add backward", 2 * rows * width)
                done = self._experts.backward()
            else:
                done = self._mlp_backward()
            made.kernel("norm backward", "norm-backward", rows, width, after=done)
            self._normed_backward()
        self.row_backward("projection", width, model.out_width)
        if model.recompute == "mla_up_proj" and model.kv_rank:
            self._expanded_again()
        if model.recompute == "selective":
            with made.recomputing():
                self._attention(kind)
        self._attention_backward(kind)
        self._positions(" backward")
        done = self._queries_keys_values_backward()
        made.kernel("norm backward", "norm-backward", rows, width, after=done)
        made.moving("add backward", 3 * rows * width)

    def _normed_backward(self) -> None:
        self._dropped(" backward")
        if self.model.post_norm:
            self.made.kernel("norm backward", "norm-backward", self.rows, self.model.hidden)

    # Products that the ranks of tp share

    def gather(self, width: int, *, product: bool = True) -> int:
        """Gather the sequence from the ranks of tp, behind the last kernel.

        Inputs of a ``product`` in fp8 are gathered as it takes them, as Transformer Engine does.
        """
        made, elements = self.made, self.tokens * width
        size = self._input_bytes(elements) if product else elements * made.item
        return made.collective("all_gather", size, "tp", after=made.last_kernel)

    def _input_bytes(self, elements: int) -> int:
        """Return the bytes of elements of the input of a product."""
        math = self.model.math
        if not math or self.model.mode != "train":
            return elements * self.made.item
        return ceil(elements * item_bytes(math))

    def reduce(self, width: int, needed: int, rows: int = 0) -> int:
        """Sum over the ranks that share a product; a single rank has nothing to sum."""
        if self.model.tp < 2:
            return -1
        kind = "reduce_scatter" if self.scatters else "all_reduce"
        size = (rows or self.tokens) * width * self.made.item
        return self.made.collective(kind, size, "tp", after=needed)

    def column(self, name: str, n: int, k: int, *, gathered: bool = False) -> None:
        """Write a product whose columns are shared; its input is whole on every rank."""
        made = self.made
        if not self.scatters or gathered:
            self._product(name, n, k)
        elif not self.model.tp_overlap:
            made.wait_for(self.gather(k))
            self._product(name, n, k)
        else:
            self._gathered_product(name, n, k)
            self._adapter(name, n, k)

    def _gathered_product(self, name: str, n: int, k: int) -> None:
        """Write a product in pieces: of what is here at once, of the rest as it is gathered."""
        made, tokens = self.made, self.tokens
        needed, size = made.last_kernel, self._input_bytes(tokens * k)
        came = -1
        for rows, nbytes in zip(
            (self.rows, *split(tokens - self.rows, PIECES)), (*split(size, PIECES), 0), strict=True
        ):
            arrived = came
            if nbytes:
                came = made.collective("all_gather", nbytes, "tp", after=needed)
            if rows:
                made.gemm(name, rows, n, k, after=arrived)

    def row(self, name: str, n: int, k: int) -> int:
        """Write a product whose rows are shared; return the sum of its results, -1 for none."""
        made = self.made
        if not (self.model.tp_overlap and self.model.tp > 1):
            return self.reduce(n, self._product(name, n, k))
        self._adapter(name, n, k)
        for rows in split(self.tokens, min(PIECES, self.tokens)):
            done = self.reduce(n, made.gemm(name, rows, n, k), rows)
        return done

    def row_backward(self, name: str, n: int, k: int) -> None:
        """Write the gradients of a product whose rows are shared."""
        made = self.made
        if self.scatters and self.model.tp_overlap:
            self._gathered_product(f"{name} input gradient", k, n)
        else:
            if self.scatters:
                made.wait_for(self.gather(n))
            made.gemm(f"{name} input gradient", self.tokens, k, n)
        self._adapter_backward(name, n, k)
        self.weight_gradient(name, n, k)

    def column_backward(self, name: str, n: int, k: int, *, summed: bool = True) -> int:
        """Write the gradients of a product whose columns are shared.

        The sum of its input's gradient runs while the weight's is computed. Return it, -1 for none.
        """
        made, tokens = self.made, self.tokens
        regathers = self.scatters and self.model.trains_weights and self.deferred is None
        again = self.gather(k) if regathers else -1
        bulk = self.model.trains_weights  # the sum runs while the weight's gradient is computed
        if self.model.tp_overlap and self.model.tp > 1 and summed and not bulk:
            for rows in split(tokens, min(PIECES, tokens)):
                piece = made.gemm(f"{name} input gradient", rows, k, n)
                done = self.reduce(k, piece, rows)
            self._adapter_backward(name, n, k)
        else:
            product = made.gemm(f"{name} input gradient", tokens, k, n)
            self._adapter_backward(name, n, k)
            done = (
                self.reduce(k, made.last_kernel if self.model.lora else product) if summed else -1
            )
        self.weight_gradient(name, n, k, after=again, regather=self.scatters)
        return done

    def weight_gradient(
        self, name: str, n: int, k: int, *, after: int = -1, regather: bool = False, rows: int = 0
    ) -> None:
        """Write the gradient of a weight unless it is frozen, or put it off."""
        if not self.model.trains_weights:
            self.made.wait_for(after)
            return
        rows = rows or self.tokens

        def product() -> None:
            came = self.gather(k) if self.deferred is not None and regather else after
            self.made.gemm(f"{name} weight gradient", k, n, rows, after=came)

        self.put_off(product)

    def put_off(self, write: Callable[[], None]) -> None:
        """Write something that belongs to gradients of weights, now or later."""
        if self.deferred is None:
            write()
        else:
            self.deferred.append(write)

    def _product(self, name: str, n: int, k: int) -> int:
        done = self.made.gemm(name, self.tokens, n, k)
        return max(done, self._adapter(name, n, k))

    def _adapted(self, name: str) -> bool:
        own = ("qkv", "projection", "up", "down") if self.model.lora_mlp else ("qkv", "projection")
        return self.model.lora > 0 and name in own

    def _adapter(self, name: str, n: int, k: int) -> int:
        """Write the two thin products of an adapter and add them to the result.

        They are in the dtype of the activations whatever other products are in: adapters of NeMo
        are Megatron's linear layers, not Transformer Engine's, so nothing is quantized for them.
        """
        if not self._adapted(name):
            return -1
        made, rank = self.made, self.model.lora
        made.gemm(f"{name} adapter down", self.tokens, rank, k, dtype=made.dtype)
        made.gemm(f"{name} adapter up", self.tokens, n, rank, dtype=made.dtype)
        return made.moving("adapter add", 3 * self.tokens * n)

    def _adapter_backward(self, name: str, n: int, k: int) -> None:
        if not self._adapted(name):
            return
        made, rank = self.made, self.model.lora
        made.gemm(f"{name} adapter up input gradient", self.tokens, rank, n, dtype=made.dtype)
        made.gemm(f"{name} adapter up weight gradient", rank, n, self.tokens, dtype=made.dtype)
        made.gemm(f"{name} adapter down input gradient", self.tokens, k, rank, dtype=made.dtype)
        made.gemm(f"{name} adapter down weight gradient", k, rank, self.tokens, dtype=made.dtype)
        made.moving("adapter add backward", 3 * self.tokens * k)

    # Attention

    def _queries_keys_values(self) -> None:
        model, made = self.model, self.made
        if not model.kv_rank:
            self.column("qkv", model.qkv_of(model.tp), model.hidden)
        else:
            narrow = self._latent[1]
            if model.mode != "train":  # servers compress queries and keys in one product
                narrow = [("qkv down", sum(n for _, n, _ in narrow), model.hidden)]
            for name, n, _ in narrow:
                made.gemm(name, self.rows, n, model.hidden)
                made.kernel("norm", "norm", self.rows, n)
            self._expanded()
        if model.qk_norm:
            self._sum_squares()
            made.kernel("norm", "norm", self.tokens, self._normed_width)

    def _sum_squares(self) -> None:
        """Sum what norms over all heads need over the ranks of tp: two numbers of a token.

        One sum for queries and keys, as in vLLM (vllm-project/vllm#31493).
        """
        if not self.model.qk_norm_span or self.model.tp < 2:
            return
        made = self.made
        squared = made.moving("squares", self.tokens * self._normed_width)
        made.wait_for(made.collective("all_reduce", _SQUARES * self.tokens, "tp", after=squared))

    def _expanded(self) -> None:
        """Write the products that expand compressed queries, keys and values."""
        wide, narrow = self._latent
        if self.scatters:
            self.made.wait_for(self.gather(sum(n for _, n, _ in narrow)))
        for name, n, k in wide:
            if self._is_whole(name):
                self.column(name, n, k)
            else:
                self._product(name, n, k)

    def _is_whole(self, name: str) -> bool:
        """Return whether a product that gives queries takes the hidden state, not compressed."""
        return name == "q up" and not self.model.q_rank

    def _expanded_again(self) -> None:
        """Write what Megatron-Core's ``mla_up_proj`` recomputes: norms, products, positions."""
        for _, n, _ in self._latent[1]:
            self.made.kernel("norm", "norm", self.rows, n)
        self._expanded()
        self._positions("")

    def _queries_keys_values_backward(self) -> int:
        model, made = self.model, self.made
        if model.qk_norm:
            self._sum_squares()
            made.kernel("norm backward", "norm-backward", self.tokens, self._normed_width)
        if not model.kv_rank:
            return self.column_backward("qkv", model.qkv_of(model.tp), model.hidden)
        wide, narrow = self._latent
        for name, n, k in wide:
            if self._is_whole(name):
                made.wait_for(self.column_backward(name, n, k))
            else:
                product = made.gemm(f"{name} input gradient", self.tokens, k, n)
                self.weight_gradient(name, n, k)
        made.wait_for(self.reduce(sum(n for _, n, _ in narrow), product))
        for name, n, k in narrow:
            made.kernel("norm backward", "norm-backward", self.rows, n)
            made.gemm(f"{name} input gradient", self.rows, k, n)
            self.weight_gradient(name, n, k, rows=self.rows)
        return -1

    @property
    def _normed_width(self) -> int:
        """Elements of the queries and keys of a token on this rank.

        Norms of single heads are short rows, of which a block of threads takes many: as many as
        a token has are priced as one row.
        """
        model = self.model
        return model.head_dim * (model.heads // model.tp + model.kv_heads_of(model.tp))

    @property
    def _latent(self) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
        """Products of latent attention: those that expand, and those that compress before."""
        model = self.model
        heads = model.heads // model.tp
        keys = heads * (model.head_dim + model.value_dim)
        narrow = [("kv down", model.kv_rank + model.rope_dim, model.hidden)]
        wide = [("kv up", keys, model.kv_rank)]
        if model.q_rank:
            narrow.append(("q down", model.q_rank, model.hidden))
        wide.append(("q up", heads * model.qk_dim, model.q_rank or model.hidden))
        return wide, narrow

    def _positions(self, way: str) -> None:
        """Turn queries and keys by their place, or bring heads apart where attention needs it."""
        model = self.model
        if model.rotary and not model.fused_rotary:
            values = model.kv_heads_of(model.tp) * model.value_dim
            turned = self.tokens * (model.qkv_of(model.tp) - values)
            self.made.moving(f"rotate{way}", _TURNED[way] * turned)
        elif model.rotary or not model.flash:
            name = ("rotate" if model.rotary else "split heads") + way
            self.made.moving(name, 2 * self.tokens * model.qkv_of(model.tp))

    def _dropped(self, way: str) -> None:
        """Drop some of what goes back into the residual: read, written, and a mask."""
        if self.model.dropout:
            self.made.moving(f"dropout{way}", 3 * self.rows * self.model.hidden)

    def _attention(self, kind: LayerKind) -> None:
        made = self.made
        if self.model.cp > 1:
            self._context_parallel("attention", "attention", kind)
        elif self.model.flash:
            for piece in self.pieces:
                made.kernel("attention", "attention", *self._attention_shape(piece, kind))
        else:
            batch, heads, _, queries, keys, dim = self._attention_shape(self.pieces[0], kind)[:6]
            scores = batch * heads * queries * keys
            made.bmm("scores", batch * heads, queries, keys, dim)
            self._softmax(batch * heads, queries, keys)
            made.moving("dropout", 2 * scores)
            made.bmm("values", batch * heads, queries, dim, keys)

    def _attention_backward(self, kind: LayerKind) -> None:
        made, name = self.made, "attention backward"
        if self.model.cp > 1:
            self._context_parallel(name, "attention-backward", kind, backward=True)
        elif self.model.flash:
            shape = self._attention_shape(self.pieces[0], kind)
            made.kernel(name, "attention-backward", *shape)
        else:
            batch, heads, _, queries, keys, dim = self._attention_shape(self.pieces[0], kind)[:6]
            scores = batch * heads * queries * keys
            made.bmm("values input gradient", batch * heads, queries, keys, dim)
            made.bmm("values gradient", batch * heads, keys, dim, queries)
            made.moving("dropout backward", 3 * scores)
            self._softmax_backward(batch * heads, queries, keys)
            made.bmm("queries gradient", batch * heads, queries, dim, keys)
            made.bmm("keys gradient", batch * heads, keys, dim, queries)

    def _softmax(self, matrices: int, queries: int, keys: int) -> None:
        """Write scale, mask and softmax of scores: one kernel, two, or fp32 copies between them."""
        made, scores = self.made, matrices * queries * keys
        if self.model.fused_softmax and matrices % FUSED_SOFTMAX_MATRICES == 0:
            # with a causal mask it reads one half of each matrix and writes all of it
            rows = matrices * queries
            made.kernel("softmax", "softmax", rows * 3 // 4 if self.model.causal else rows, keys)
            return
        if self.model.fused_softmax:  # to fp32, scaled, and back: bytes of a score
            made.kernel("cast", "elementwise", nbytes=6 * scores)
            made.kernel("scale", "elementwise", nbytes=8 * scores)
        made.moving("mask", 2 * scores)
        made.kernel("softmax", "softmax", matrices * queries, keys)
        if self.model.fused_softmax:
            made.kernel("cast", "elementwise", nbytes=6 * scores)

    def _softmax_backward(self, matrices: int, queries: int, keys: int) -> None:
        made, scores = self.made, matrices * queries * keys
        fused = self.model.fused_softmax and matrices % FUSED_SOFTMAX_MATRICES == 0
        falls_back = self.model.fused_softmax and not fused
        if falls_back:
            made.kernel("cast backward", "elementwise", nbytes=6 * scores)
        rows = matrices * queries
        if fused and self.model.causal:  # two halves are read
            rows = rows * 2 // 3
        made.kernel("softmax backward", "softmax-backward", rows, keys)
        if not fused:
            made.moving("mask backward", 2 * scores)
        if falls_back:
            made.kernel("scale backward", "elementwise", nbytes=8 * scores)
            made.kernel("cast backward", "elementwise", nbytes=6 * scores)

    def _attention_shape(self, piece: Piece, kind: LayerKind) -> tuple[int, ...]:
        model = self.model
        causal = model.causal and model.mode != "decode"
        count, queries, keys = piece.count, piece.queries, piece.keys
        if kind.full or keys <= model.window:
            return self._shape(count, queries, keys, causal=causal)
        if queries == 1:
            return self._shape(count, 1, model.window, causal=causal)
        if model.chunked and queries == keys:
            many, keys = count * -(-keys // model.window), model.window
            return self._shape(many, keys, keys, causal=causal)
        shape = self._shape(count, queries, keys, causal=causal)
        return (*shape[:7], model.window, *shape[8:])

    def _shape(self, count: int, queries: int, keys: int, *, causal: bool) -> tuple[int, ...]:
        """Return the shape of an attention kernel."""
        model = self.model
        heads = model.heads // model.tp
        kv, dim = max(1, model.kv_heads_of(model.tp)), model.qk_dim
        if model.kv_rank:
            dim = (model.qk_dim + model.value_dim) // 2  # as many products as both sides have
            if queries == 1:  # decoding reads the compressed keys, one head for all
                kv, dim = 1, model.kv_rank + model.rope_dim
        shape = count, heads, kv, queries, keys, dim, int(causal)
        usual = not model.kv_rank and model.cache_item == _CACHED_BYTES
        if model.mode == "train" or usual:
            return shape
        return (*shape, 0, model.cache_item, int(model.kv_rank > 0 and queries == 1))

    def _context_parallel(
        self, name: str, family: str, kind: LayerKind, *, backward: bool = False
    ) -> None:
        """Write attention of a part of the sequence, with keys and values of the other parts."""
        model, made, count = self.model, self.made, self.pieces[0].count
        local, item = model.seq // model.cp, made.item
        heads = model.kv_heads_of(model.tp)
        keys = self.tokens * heads * (model.qk_dim + model.value_dim) * item
        if model.cp_kind == "ulysses":
            into = self.tokens * model.qkv_of(model.tp) * item
            out = self.tokens * model.out_width * item
            first, last = (out, into) if backward else (into, out)
            needed = made.collective("all_to_all", first, "cp", after=made.last_kernel)
            piece = type(self.pieces[0])(count, model.seq, model.seq)
            shape = list(self._attention_shape(piece, kind))
            shape[1], shape[2] = shape[1] // model.cp, max(1, shape[2] // model.cp)
            done = made.kernel(name, family, *shape, after=needed)
            made.wait_for(made.collective("all_to_all", last, "cp", after=done))
        elif not kind.full and model.window <= local:  # only what the window reaches back to
            reach = keys * min(model.window, local) // local * (0 if model.chunked else 1)
            needed = -1
            if reach:
                needed = made.collective("send", reach, "cp", peer=1, after=made.last_kernel)
            # all but the first part see a whole window from their first query on
            seen = local if model.chunked else local + model.window
            piece = type(self.pieces[0])(count, local, seen)
            made.kernel(name, family, *self._attention_shape(piece, kind), after=needed)
        elif model.cp_kind == "allgather":
            gathered = keys * model.cp
            needed = made.collective("all_gather", gathered, "cp", after=made.last_kernel)
            # early and late parts of the sequence are paired, so that a rank sees as much as any
            seen = int(model.keys_seen(full=kind.full))
            done = made.kernel(
                name, family, *self._shape(count, local, seen, causal=False), after=needed
            )
            if backward:
                made.wait_for(made.collective("reduce_scatter", gathered, "cp", after=done))
        else:
            self._ring(name, family, count, 2 * keys if backward else keys, kind)

    def _ring(self, name: str, family: str, count: int, nbytes: int, kind: LayerKind) -> None:
        """Pass keys and values around while those that are here are used (arXiv 2310.01889).

        Every rank has an early and a late part of the sequence. Of what comes from others it needs
        one half, for all of its queries, or all for the half of them; with a window less of it.
        """
        model, made = self.model, self.made
        local = model.seq // model.cp
        here = local / 2 if model.causal else local  # of its own keys, in the mean
        seen = max(1, round((model.keys_seen(full=kind.full) - here) / (model.cp - 1)))
        arrived, started = -1, made.last_kernel
        for step in range(model.cp):
            sent = -1
            if step + 1 < model.cp:
                sent = made.collective("send", nbytes, "cp", peer=1, after=started)
            if step:
                shape = self._shape(count, local, seen, causal=False)
            else:
                shape = self._shape(count, local, local, causal=model.causal)
            made.kernel(name, family, *shape, after=arrived)
            if step:
                made.moving("merge", 3 * self.tokens * model.out_width)
            arrived = sent

    # The inner layer

    def _mlp(self, *, gathered: bool = False) -> int:
        return self.inner("up", "down", self.model.ffn, gathered=gathered)

    def inner(
        self, up: str, down: str, width: int, *, gathered: bool = False, summed: bool = True
    ) -> int:
        """Write an MLP of that width; return the sum over ranks, -1 for none."""
        model, made, inner = self.model, self.made, width // self.model.tp
        self.column(up, inner * (2 if model.gated else 1), model.hidden, gathered=gathered)
        made.moving("activation", self.tokens * inner * (3 if model.gated else 2))
        if not summed:
            return self._product(down, model.hidden, inner)
        return self.row(down, model.hidden, inner)

    def _mlp_backward(self, *, summed: bool = True) -> int:
        return self.inner_backward("up", "down", self.model.ffn, summed=summed)

    def inner_backward(self, up: str, down: str, width: int, *, summed: bool = True) -> int:
        """Write the backward pass of an MLP; return the sum over ranks, -1 for none."""
        model, made, inner = self.model, self.made, width // self.model.tp
        self.row_backward(down, model.hidden, inner)
        made.moving("activation backward", self.tokens * inner * (5 if model.gated else 3))
        wide = inner * (2 if model.gated else 1)
        return self.column_backward(up, wide, model.hidden, summed=summed)
