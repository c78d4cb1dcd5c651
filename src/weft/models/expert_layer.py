"""Routed and shared experts of a layer: who computes which tokens, and how they get there.

```
 router -> dispatch -> [all_to_all] -> [gather] -> experts -> [scatter] -> [all_to_all] -> combine
```

Where experts are on other ranks and cut by tensor parallelism, each of the tp ranks, which all
have the same tokens, sends a share of them; what arrives is gathered behind the exchange, and
results are scattered before they go back (as Megatron's dispatcher does).

DeepEP and HybridEP, the ``flex`` dispatcher, read tokens where they are and send each once to a
rank, through one of its node. Copies for its experts are made behind the exchange.

A server computes the experts of a rank in one kernel, which sorts tokens and adds up results. Ranks
of tp all have the tokens, so each computes those of its experts and one sum over ranks ends the
layer; ranks with requests of their own exchange tokens first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.step.step_graph import distinct_targets

if TYPE_CHECKING:
    from weft.models.building import After
    from weft.models.transformer_layer import Layer
    from weft.step.step_graph import StepGraph

_GRADIENTS = (" input gradient", " weight gradient")


# The names of ops between the two exchanges of tokens.
EXPERT_OPS = frozenset(
    ("sort", "sort back", "experts", "activation of experts", "activation of experts backward")
) | {f"experts {side}{what}" for side in ("up", "down") for what in ("", *_GRADIENTS)}
EXPERT_OPS |= {
    f"experts {what}{suffix}" for what in ("clamp", "bias") for suffix in ("", " backward")
}

# What torch's own kernels move where a program does not fuse these, in elements of two bytes for
# each element, forward and backward; counted in Megatron-Core (TEGroupedMLP, fused_bias_geglu).
# Clamps: both halves are clamped apart and joined; backward two masks, two selections, a join.
# A half is a strided view, which torch's element-wise kernels take 1.8 times as long for
# (validation/predict_kernels.py: recorded kernels on H100 and MI300X).
_CLAMP = 11, 24
# Bias of the last product: bias x probability in fp32, added expert by expert, joined, cast to
# bf16; backward two casts, a join, and two products in fp32 with a sum each.
_BIAS = 14, 20


class Experts:
    """The experts of a layer."""

    def __init__(self, layer: Layer) -> None:
        self._layer, self._model, self._made = layer, layer.model, layer.made
        model = self._model
        # tokens are split among the ranks of tp before they are sent
        self._splits = model.tp > 1 and (model.ep > 1 or model.expert_tp < model.tp)
        self._cut = model.tp > 1 and model.expert_tp > 1  # ranks of tp share each expert
        self._flex = model.dispatcher == "flex" and model.ep > 1
        # ranks that a token goes to: one for each of its experts, or each of them once
        self._targets = distinct_targets(model.ep, model.topk) if self._flex else model.topk

    def forward(self) -> int:
        """Write the forward pass; return what has to be waited for, -1 for nothing."""
        layer, model = self._layer, self._model
        if model.mode != "train":
            return self._served()
        if model.shared_ffn:
            self._made.wait_for(layer.inner("shared up", "shared down", model.shared_ffn))
        return self._routed(backward=False)

    def _served(self) -> int:
        """Write the forward pass of a server; routed and shared experts are summed together."""
        layer, model, made = self._layer, self._model, self._made
        if model.shared_ffn:
            layer.inner("shared up", "shared down", model.shared_ffn, summed=False)
        made.gemm("router", layer.tokens, model.experts, model.hidden, dtype=model.dtype)
        done = made.kernel("routing", "softmax", layer.tokens, model.experts)
        sets = max(1, model.expert_tp * model.ep // model.tp)  # ranks with tokens of their own
        exchanged = round(layer.tokens * model.topk * model.hidden * self._load) * made.item
        if sets > 1:
            done = made.collective("all_to_all", exchanged, "ep", after=done)
        # Tokens ask for some experts more than for others; who holds them is spread over ranks, so
        # a rank reads as much of them as if all ranks shared every expert.
        shape = (
            *(layer.tokens * sets, model.hidden, model.expert_width, model.topk, model.experts),
            *(model.expert_tp * model.ep, 1, 1),
        )
        done = made.kernel("experts", "moe", *shape, after=done, dtype=model.expert_math)
        if sets > 1:
            done = made.collective("all_to_all", exchanged, "ep", after=done)
        return layer.reduce(model.hidden, done) if model.tp > 1 else done

    def backward(self) -> int:
        """Write the backward pass; return what has to be waited for, -1 for nothing."""
        layer, model = self._layer, self._model
        if model.shared_ffn:
            up, down = "shared up", "shared down"
            self._made.wait_for(layer.inner_backward(up, down, model.shared_ffn))
        return self._routed(backward=True)

    @property
    def _tokens(self) -> int:
        """Tokens that a rank routes."""
        layer = self._layer
        return (
            -(-layer.tokens // self._model.tp) if self._splits or layer.scatters else layer.tokens
        )

    @property
    def _load(self) -> float:
        """Tokens that the fullest expert takes over those of the mean."""
        model = self._model
        return min(model.imbalance, model.capacity) if model.capacity else model.imbalance

    def _routed(self, *, backward: bool) -> int:
        layer, model, made = self._layer, self._model, self._made
        tokens = self._tokens
        if not backward:
            made.gemm("router", tokens, model.experts, model.hidden)
            made.kernel("routing", "softmax", tokens, model.experts)
        moved = tokens * model.topk * model.hidden
        # experts of this rank alone: tokens are gathered before they are copied for each expert
        rows = self._arriving if model.ep > 1 else layer.tokens
        arrived = rows * model.hidden * made.item
        gathers = self._cut and (model.ep > 1 or layer.scatters)
        done = made.last_kernel
        if not self._flex:
            done = made.moving("dispatch", 2 * moved, family="copy")
        done = self._exchanged(done)
        if gathers:
            done = made.collective("all_gather", arrived, "tp", after=done)
        done = self._computed(done, backward=backward)
        if gathers:
            done = made.collective("reduce_scatter", arrived, "tp", after=done)
        done = self._exchanged(done)
        if self._flex:
            made.wait_for(done)
        else:
            done = made.moving("combine", 2 * moved, family="copy", after=done)
        if backward:
            made.kernel("routing backward", "softmax-backward", tokens, model.experts)
            done = made.gemm("router input gradient", tokens, model.hidden, model.experts)
            layer.weight_gradient("router", model.experts, model.hidden, rows=tokens)
        if layer.scatters:
            return -1
        if self._splits:
            size = layer.tokens * model.hidden * made.item
            return made.collective("all_gather", size, "tp", after=done)
        return layer.reduce(model.hidden, done)

    def _exchanged(self, needed: int) -> int:
        """Send tokens to the ranks of their experts, or back; as many leave a rank as arrive."""
        model, made = self._model, self._made
        if model.ep == 1:
            return needed
        rows = round(self._tokens * self._targets * model.hidden * self._load)
        copies = model.topk if self._flex else 0
        return made.exchange(rows * made.item, "ep", copies, after=needed)

    @property
    def _arriving(self) -> int:
        """Rows that the fullest rank computes: with all ranks alike, its share of all tokens."""
        layer, model = self._layer, self._model
        tokens = layer.tokens
        if model.tp > 1 and not self._cut:
            tokens = -(-tokens // model.tp)
        return round(tokens * model.topk * self._load)

    def _computed(self, arrived: int, *, backward: bool) -> int:
        """Compute the experts of a rank on what has arrived.

        Training keeps what is between the products and runs those by the library of products.
        """
        model, made = self._model, self._made
        inner = model.expert_width // model.expert_tp
        routed, held = self._arriving, model.experts // model.ep
        # they come in the order of ranks, and leave in it; a rank copies tokens for its experts
        sorts = model.ep > 1 and (held > 1 or self._flex)
        sorted_ = round(routed * (1 + self._targets / model.topk)) * model.hidden
        if sorts:
            arrived = made.moving("sort", sorted_, family="copy", after=arrived)
        groups = min(held, routed)
        rows, wide = -(-routed // groups), inner * (2 if model.gated else 1)
        passes, unfused = routed * inner, not model.fused_experts
        if backward:
            if unfused and model.expert_bias:
                elements = _BIAS[1] * routed * model.hidden
                arrived = made.moving("experts bias backward", elements, after=arrived)
            down = groups, rows, model.hidden, inner
            self._product_backward("experts down", *down, after=arrived)
            if model.recompute == "moe_act":
                self._activation(passes)
            made.moving("activation of experts backward", passes * (5 if model.gated else 3))
            if unfused and model.clamped:
                made.moving("experts clamp backward", _CLAMP[1] * passes)
            done = self._product_backward("experts up", groups, rows, wide, model.hidden)
        else:
            made.grouped_gemm("experts up", groups, rows, wide, model.hidden, after=arrived)
            self._activation(passes)
            done = made.grouped_gemm("experts down", groups, rows, model.hidden, inner)
            if unfused and model.expert_bias:
                done = made.moving("experts bias", _BIAS[0] * routed * model.hidden)
        if sorts:
            done = made.moving("sort back", sorted_, family="copy")
        return done

    def _activation(self, passes: int) -> None:
        model, made = self._model, self._made
        if model.clamped and not model.fused_experts:
            made.moving("experts clamp", _CLAMP[0] * passes)
        made.moving("activation of experts", passes * (3 if model.gated else 2))

    def _product_backward(
        self, name: str, groups: int, m: int, n: int, k: int, *, after: After = -1
    ) -> int:
        """Write the gradients of grouped products; what is sent back waits for the input's."""
        made = self._made
        done = made.grouped_gemm(f"{name} input gradient", groups, m, k, n, after=after)
        if self._model.trains_weights:

            def product() -> None:
                made.grouped_gemm(f"{name} weight gradient", groups, k, n, m)

            self._layer.put_off(product)
        return done


def has_experts(graph: StepGraph) -> bool:
    """Return whether a step was written with experts, whose load and exchange nobody knows well."""
    return graph.is_generated and any(op.name in EXPERT_OPS for s in graph.steps for op in s.ops)
