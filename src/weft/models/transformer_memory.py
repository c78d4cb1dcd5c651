"""What memory the ranks of each stage of a pipeline need, and for what.

Counted are tensors: weights, gradients, states of the optimizer, activations that a backward pass
needs, buffers of what is gathered. What no tensor shows is not: the context of the device, kernels
that are loaded, buffers of the communication library, fragments of the allocator.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from weft.hardware.dtypes import item_bytes, output_dtype, scheme_of
from weft.models.building import ITEM_BYTES
from weft.models.pipeline import PassOrder
from weft.models.transformer import LayerKind, Transformer
from weft.models.transformer_layout import Layout
from weft.step.step_graph import Memory

MASTER = 12  # bytes a parameter: fp32 weight and two moments of AdamW
WORKSPACE = 64 << 20  # of cuBLAS and of Transformer Engine, 32 MiB each on Hopper
MOMENTS = 8  # where weights are fp32 themselves


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one rank of a stage, by what they are for."""

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int

    @property
    def total(self) -> int:
        """All of them together."""
        return sum((self.weights, self.gradients, self.optimizer, self.activations, self.buffers))

    def as_row(self) -> dict[str, int]:
        """Return them as programs read them."""
        names = ("stage", "weights", "gradients", "optimizer", "activations", "buffers", "total")
        return {name: getattr(self, name) for name in names}


def fullest_memory(model: Transformer, layout: Layout) -> Memory:
    """Return what a rank of the fullest stage needs."""
    most = max(stage_memories(model, layout), key=lambda each: each.total)
    parts = most.weights, most.gradients, most.optimizer, most.activations
    return Memory(*parts, other=most.buffers)


def stage_memories(model: Transformer, layout: Layout) -> list[StageMemory]:
    """Return what a rank of each stage needs."""
    each = _Serving if model.mode != "train" else _Training
    return [each(model, layout, stage).memory() for stage in range(model.pp)]


def served_bytes(model: Transformer, dense: int, expert: int, ends: int) -> int:
    """Return the bytes of weights of a server, given the numbers in layers, experts and both ends.

    Products have them as they multiply them; the embedding and the head are not quantized.
    """
    math = scheme_of(model.math or model.dtype).weight
    own = scheme_of(model.expert_math).weight if model.expert_math else math
    return int(math * dense + own * expert + item_bytes(model.dtype) * ends)


class _Serving:
    """Weights, the cache of keys and values, and what one pass works on."""

    def __init__(self, model: Transformer, layout: Layout, stage: int) -> None:
        self.model, self.layout, self.stage = model, layout, stage
        positions = layout.positions(stage)
        self.chunks = [layout.chunks[position] for position in positions]
        self.layers = [n for chunk in self.chunks for n in chunk]
        self.first, self.last = 0 in positions, len(layout.chunks) - 1 in positions
        self.stored = ITEM_BYTES[model.dtype]
        self.item = int(item_bytes(output_dtype(model.dtype)))  # of activations and gradients
        queries = 1 if model.mode == "decode" else model.seq // model.cp
        self.tokens = layout.micro * queries
        self.rows = -(-self.tokens // model.tp) if model.sp else self.tokens
        dense = expert = 0
        for layer in self.layers:
            weights = model.layer_weights(model.kinds[layer])
            dense, expert = dense + weights.dense, expert + weights.expert
        ends = self.first + self.last - (self.first and self.last and model.tied)
        self.ends = ends * model.vocab_of_rank * model.hidden  # embedding and head
        if self.last and model.mtp and model.mode == "train":
            weights = model.layer_weights(model.kinds[-1])
            dense += model.mtp * (weights.dense + 2 * model.hidden**2 // model.tp)
            expert += model.mtp * weights.expert
        self.dense, self.expert = dense + self.ends, expert

    def memory(self) -> StageMemory:
        model, layout = self.model, self.layout
        width = model.kv_heads_of(model.tp) * (model.qk_dim + model.value_dim)
        if model.kv_rank:
            width = model.kv_rank + model.rope_dim
        kept = sum(
            model.seq if model.kinds[n].full else min(model.seq, model.window) for n in self.layers
        )
        cache = layout.num_micro * layout.micro * kept * width * model.cache_item
        working = 8 * self.tokens * model.hidden * self.item
        held = self.dense - self.ends, self.expert, self.ends
        gathered = 0
        if model.zero_stage == 3 and layout.replicas > 1:
            dense, expert = layout.shard, self._expert_replicas
            held = held[0] // dense, held[1] // expert, held[2] // dense
            gathered = (1 + model.prefetch) * self._largest_layer * self.stored
        weights = served_bytes(model, *held)
        return StageMemory(self.stage, weights, 0, 0, working, cache + gathered)

    @property
    def _expert_replicas(self) -> int:
        """Ranks among which the weights of experts are shared out."""
        groups = self.layout.groups
        among = next((name for name in ("expert shard", "edp") if name in groups), "")
        return groups[among].size if among else self.layout.shard

    @property
    def _largest_layer(self) -> int:
        """Parameters of the largest layer."""
        return max((self._layer_weights(n) for n in self.layers), default=0)

    def _layer_weights(self, layer: int) -> int:
        return self.model.layer_weights(self.model.kinds[layer]).total


class _Training(_Serving):
    """Everything that a training step keeps, at the moment when it is most."""

    def memory(self) -> StageMemory:
        model, layout = self.model, self.layout
        dense, expert = layout.shard, max(1, self._expert_replicas)
        held = self.dense + self.expert
        shared = self.dense // dense + self.expert // expert
        zero = model.zero_stage
        weights = (shared if zero == 3 else held) * self.stored
        trained, trained_shared = held, shared
        if model.lora:
            trained = sum(model.adapter_weights(model.kinds[n]) for n in self.layers)
            trained_shared = trained // dense
            weights += trained * self.stored
        elif model.frozen:
            trained = trained_shared = 0
        gradient = int(item_bytes(model.grad_dtype)) if model.grad_dtype else self.item
        gradients = (trained_shared if zero >= 2 else trained) * gradient
        states = (trained_shared if zero >= 1 else trained) * (
            MASTER if self.stored < 4 else MOMENTS
        )
        return StageMemory(
            *(self.stage, weights, gradients, states), self._activations(), self._buffers()
        )

    def _buffers(self) -> int:
        """Weights that are gathered at once, and whole gradients of the layer at work."""
        model, largest = self.model, self._largest_layer
        if model.zero_stage < 3 or self.layout.replicas < 2:
            return WORKSPACE
        end = model.vocab_of_rank * model.hidden if self.ends else 0  # gathered by itself
        held = sum(self._layer_weights(n) for n in self.layers) + self.ends
        whole = 0 if model.reshard else held
        gathered = max(whole, max(largest, end) + model.prefetch * largest) * self.stored
        gradients = largest * self.item if model.trains_weights else 0
        return gathered + gradients + WORKSPACE

    def _in_flight(self) -> tuple[int, ...]:
        """Return the micro batches that a stage keeps, by its chunks, when it keeps most."""
        model, many = self.model, self.layout.num_micro
        if model.schedule == "gpipe" and model.pp > 1:
            return (many,)
        # A pipeline is full after as many micro batches as pass all stages twice.
        order = PassOrder.of(model, self.stage, min(many, 2 * model.pp))
        return _most_in_flight(order, len(self.chunks))

    def _activations(self) -> int:
        """Activations of all micro batches that are kept, and what one pass works on."""
        model = self.model
        total, row = 0.0, self.rows * model.hidden * self.item
        positions = self.layout.positions(self.stage)
        flights = zip(positions, self.chunks, self._in_flight(), strict=True)
        for position, chunk, flying in flights:
            recomputed = model.recompute_layers or len(chunk)
            for index, layer in enumerate(chunk):
                again = model.recompute == "full" and index < recomputed
                total += flying * (row if again else self._layer(layer))
            if chunk.start == 0:  # tokens of the embedding and their output
                total += flying * self.tokens * 8
            if position + 1 == len(self.layout.chunks):  # modules that predict further tokens
                inside = row if model.recompute == "full" else self._layer(model.layers - 1)
                # inputs of both norms of a module, and of the product that joins their results
                total += flying * model.mtp * (inside + 4 * row)
        return int(total + self._working())

    def _layer(self, layer: int, model: Transformer | None = None) -> float:
        model = model or self.model
        return layer_activations(
            model, model.kinds[layer], self.tokens, self.layout.micro, self.item
        )

    def _working(self) -> float:
        """Return what the pass itself needs: a layer that is recomputed, or logits of the head."""
        model = self.model
        inner = self.tokens * max(model.ffn, model.expert_width) // model.tp
        gradients = (inner * (2 if model.gated else 1) + self.tokens * model.hidden) * self.item
        # of the widest product, before it is added to what accumulates
        each = model.hidden * self.item if model.trains_weights else 0
        gradients += each * model.ffn * (2 if model.gated else 1) // model.tp
        # what is not kept of the layer at work is there again
        whole = replace(model, recompute="none") if model.recompute == "selective_op" else model
        again = max((self._layer(n, whole) for n in self.layers), default=0.0)
        backward = gradients + (again if model.recompute in ("full", "selective_op") else 0.0)
        if not self.last:
            return backward
        scored = self.layout.micro * (-(-model.scored // model.cp) or model.seq // model.cp)
        # logits as they are computed and their softmax in fp32, and the gradient of the head
        logits = scored * model.vocab_of_rank * (self.item + 4) * (1 + model.mtp)
        return max(backward, logits + each * model.vocab_of_rank)


def layer_activations(
    model: Transformer, kind: LayerKind, tokens: int, sequences: int, item: int
) -> float:
    """Return the bytes that the backward pass of one layer needs of its forward pass.

    Each line below is a tensor that autograd keeps: inputs of norms and products, what attention
    and activations read again. Arithmetic as in arXiv 2205.05198, for any shape.
    """
    tp, hidden = model.tp, model.hidden
    rows = -(-tokens // tp) if model.sp else tokens
    if model.recompute == "selective_op":
        return _kept_ops(model, kind, tokens, rows) * item + 4.0 * tokens * model.heads // tp
    keeps = model.trains_weights or model.lora > 0  # inputs of products, for their weights
    kept = 2.0 * rows * hidden  # inputs of both norms
    kept += 2.0 * rows * hidden * keeps  # their outputs, inputs of qkv and of the MLP
    kept += 2.0 * rows * hidden * model.post_norm
    if model.recompute != "mla_up_proj" or not model.kv_rank:
        kept += tokens * model.qkv_of(tp)  # queries, keys, values
    if keeps or model.recompute != "selective":  # the next product reads it, if not attention
        kept += tokens * model.out_width  # what attention gives
    if model.kv_rank:
        kept += 2.0 * rows * (model.q_rank + model.kv_rank + model.rope_dim)
    if model.qk_norm:
        kept += tokens * (model.heads // tp + model.kv_heads_of(tp)) * model.head_dim
    nbytes = kept * item
    nbytes += 4.0 * tokens * model.heads // tp  # log of the sums of attention, fp32
    if model.dropout:
        nbytes += 2.0 * rows * hidden
    if not model.flash and model.recompute != "selective":
        # softmax and what dropout leaves of it, and a mask
        nbytes += sequences * model.heads // tp * model.seq**2 * (2.0 * item + 1)
    return nbytes + _inner_activations(model, kind, tokens) * item


def _kept_ops(model: Transformer, kind: LayerKind, tokens: int, rows: int) -> float:
    """Return the elements that torchtitan's policy by op keeps of a layer.

    Its input, every second product from the first on, and what attention gives.
    """
    keys = model.kv_heads_of(model.tp) * model.head_dim
    products = 0 if model.kv_rank else model.qkv_of(model.tp) - keys
    if model.kv_rank:
        products = (model.q_rank or model.qkv_of(model.tp)) + model.kv_rank + model.rope_dim
    kept = rows * model.hidden + tokens * (products + model.out_width)
    if kind.experts:  # grouped products are computed again
        return float(kept)
    # Gate and result of a gated MLP; of two products the first.
    return kept + tokens * model.ffn // model.tp + rows * model.hidden * model.gated


def _inner_activations(model: Transformer, kind: LayerKind, tokens: int) -> float:
    """Return the elements that the MLP or the experts of a layer keep."""
    wide = 3 if model.gated else 2  # inputs of the activation and its output
    if not kind.experts:
        return float(tokens) * model.ffn // model.tp * wide
    cut = model.tp if model.expert_tp == 1 else 1
    load = min(model.imbalance, model.capacity) if model.capacity else model.imbalance
    routed = tokens / cut * model.topk * load
    inner = model.expert_width // model.expert_tp
    shared = tokens * model.shared_ffn / model.tp * wide
    wide -= model.recompute == "moe_act"  # the output is computed again
    return routed * (inner * wide + 2 * model.hidden) + shared


@lru_cache(maxsize=4096)  # thousands of layouts of a search share some hundred orders
def _most_in_flight(order: PassOrder, num_chunks: int) -> tuple[int, ...]:
    kept, most = [0] * num_chunks, [0] * num_chunks
    for group in order.passes():
        for each in group:
            kept[each.chunk] += each.forward
        most = max(most, kept[:], key=sum)
        for each in group:
            kept[each.chunk] -= each.part in ("backward", "input")
    return tuple(most)
