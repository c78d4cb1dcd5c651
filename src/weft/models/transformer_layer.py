"""The kernels and sums of one layer of a transformer, forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.models.building import After, Ops
    from weft.models.transformer import Piece, Transformer


class Layer:
    """One layer as a rank computes it: ``tokens`` at once, in ``pieces`` of unlike keys."""

    def __init__(
        self, model: Transformer, made: Ops, tokens: int, pieces: tuple[Piece, ...]
    ) -> None:
        self.model, self.made, self.tokens, self.pieces = model, made, tokens, pieces

    @property
    def weights(self) -> int:
        """Parameters that a rank has of it."""
        return self.dense_weights + self.expert_weights

    @property
    def dense_weights(self) -> int:
        """Parameters that all data-parallel ranks have alike: everything but experts."""
        model = self.model
        mlp = 0 if model.experts else model.mlp_weights
        return model.attention_weights // model.tp + mlp // model.tp

    @property
    def expert_weights(self) -> int:
        """Parameters of the experts that a rank holds."""
        model = self.model
        return model.experts // model.ep * (model.mlp_weights // model.tp)

    def forward(self, needed: After) -> None:
        """Write the forward pass of one micro batch, behind ``needed``."""
        model, made, tokens = self.model, self.made, self.tokens
        size, width = tokens * model.hidden * made.item, model.hidden
        made.kernel("norm", "norm", tokens, width, after=needed)
        made.gemm("qkv", tokens, model.qkv // model.tp, width)
        self._positions("")
        self._attention()
        done = made.gemm("projection", tokens, width, width // model.tp)
        summed = self._reduced(size, done)
        self._dropped(after=summed)
        made.moving("add", 3 * tokens * width, after=summed)
        made.kernel("norm", "norm", tokens, width)
        done = self._experts() if model.experts else self._mlp()
        if not model.experts:
            done = max(done, self._reduced(size, done))
        self._dropped(after=done)
        made.moving("add", 3 * tokens * width, after=done)

    def backward(self, needed: After) -> None:
        """Write its backward pass."""
        model, made, tokens = self.model, self.made, self.tokens
        width, inner = model.hidden, model.ffn // model.tp
        size = tokens * width * made.item
        self._dropped(" backward", after=needed)
        if model.experts:
            made.moving("add backward", 2 * tokens * width, after=needed)
            done = self._experts(backward=True)
        else:
            self.product_backward("down", tokens, width, inner, after=needed)
            made.moving("activation backward", tokens * inner * (5 if model.gated else 3))
            done = self.product_backward("up", tokens, inner * (2 if model.gated else 1), width)
            done = max(done, self._reduced(size, done))
        made.kernel("norm backward", "norm-backward", tokens, width, after=done)
        self._dropped(" backward")
        self.product_backward("projection", tokens, width, width // model.tp)
        self._attention_backward()
        self._positions(" backward")
        done = self.product_backward("qkv", tokens, model.qkv // model.tp, width)
        summed = self._reduced(size, done)
        made.kernel("norm backward", "norm-backward", tokens, width, after=summed)
        made.moving("add backward", 3 * tokens * width)

    def _reduced(self, nbytes: int, needed: int) -> int:
        """Sum over the ranks that share each tensor; a single rank has nothing to sum."""
        if self.model.tp < 2:
            return -1
        return self.made.collective("all_reduce", nbytes, "tp", after=needed)

    def _positions(self, way: str) -> None:
        """Turn queries and keys by their place, or bring heads apart where attention needs it."""
        model = self.model
        if model.rotary or not model.flash:
            name = ("rotate" if model.rotary else "split heads") + way
            self.made.moving(name, 2 * self.tokens * model.qkv // model.tp)

    def _dropped(self, way: str = "", *, after: After = -1) -> None:
        """Drop some of what goes back into the residual: read, written, and a mask."""
        if self.model.dropout:
            self.made.moving(f"dropout{way}", 3 * self.tokens * self.model.hidden, after=after)

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

    def _experts(self, *, backward: bool = False) -> int:
        """Route tokens to experts, on other ranks where those are, and bring them back.

        A backward pass takes the same way with gradients. Where experts are on other ranks and
        cut by tensor parallelism, each of the tp ranks, which all have the same tokens, sends a
        share of them; what arrives is gathered behind the exchange, and results are scattered
        before they go back (as Megatron's dispatcher does with sequence parallelism).
        """
        model, made = self.model, self.made
        shared = model.tp > 1 and model.ep > 1
        tokens = -(-self.tokens // model.tp) if shared else self.tokens
        if not backward:
            made.gemm("router", tokens, model.experts, model.hidden)
            made.kernel("routing", "softmax", tokens, model.experts)
        moved = tokens * model.topk * model.hidden  # as many leave a rank as arrive there
        arrived = moved * model.tp if shared else moved
        done = made.moving("dispatch", 2 * moved, family="copy")
        if model.ep > 1:
            done = made.collective("all_to_all", moved * made.item, "ep", after=done)
        if shared:
            done = made.collective("all_gather", arrived * made.item, "tp", after=done)
        done = self._computed(done, backward=backward)
        if shared:
            done = made.collective("reduce_scatter", arrived * made.item, "tp", after=done)
        if model.ep > 1:
            done = made.collective("all_to_all", moved * made.item, "ep", after=done)
        done = made.moving("combine", 2 * moved, family="copy", after=done)
        if backward:
            made.kernel("routing backward", "softmax-backward", tokens, model.experts)
            done = self.product_backward("router", tokens, model.experts, model.hidden)
        size = self.tokens * model.hidden * made.item
        if shared:
            return made.collective("all_gather", size, "tp", after=done)
        return max(done, self._reduced(size, done))

    def _computed(self, arrived: int, *, backward: bool) -> int:
        """Compute the experts of a rank on what has arrived; with all ranks alike, its share.

        A server computes them in one kernel, ``moe``, as measured of vLLM. Training keeps what
        is between the products and runs those by the library of products.
        """
        model, made = self.model, self.made
        inner = model.ffn // model.tp
        if model.mode != "train":
            tokens = self.tokens * model.ep  # of all ranks that share the experts
            shape = tokens, model.hidden, model.ffn, model.topk, model.experts, model.tp, model.ep
            return made.kernel("experts", "moe", *shape, after=arrived)
        routed, held = self.tokens * model.topk, model.experts // model.ep
        if held > 1 and model.ep > 1:  # they come in the order of ranks, and leave in it
            arrived = made.moving("sort", 2 * routed * model.hidden, family="copy", after=arrived)
        groups = min(held, routed)
        rows, wide = -(-routed // groups), inner * (2 if model.gated else 1)
        passes = routed * inner
        if backward:
            down = groups, rows, model.hidden, inner
            self._experts_backward("experts down", *down, after=arrived)
            made.moving("activation backward", passes * (5 if model.gated else 3))
            done = self._experts_backward("experts up", groups, rows, wide, model.hidden)
        else:
            made.grouped_gemm("experts up", groups, rows, wide, model.hidden, after=arrived)
            made.moving("activation", passes * (3 if model.gated else 2))
            done = made.grouped_gemm("experts down", groups, rows, model.hidden, inner)
        if held > 1 and model.ep > 1:
            done = made.moving("sort back", 2 * routed * model.hidden, family="copy")
        return done

    def _experts_backward(
        self, name: str, groups: int, m: int, n: int, k: int, *, after: After = -1
    ) -> int:
        """Write the gradients of grouped products, as those of a single one."""
        made = self.made
        done = made.grouped_gemm(f"{name} input gradient", groups, m, k, n, after=after)
        if self.model.frozen:
            return done
        return made.grouped_gemm(f"{name} weight gradient", groups, k, n, m)

    def product_backward(self, name: str, m: int, n: int, k: int, *, after: After = -1) -> int:
        """Write the products of a gradient: for the input and, unless it is frozen, the weight."""
        made = self.made
        done = made.gemm(f"{name} input gradient", m, k, n, after=after)
        return done if self.model.frozen else made.gemm(f"{name} weight gradient", k, n, m)
