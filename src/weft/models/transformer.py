"""Transformers as data: the shape of a model, how it is run, and how ranks share it.

Ranks are numbered with tensor parallelism innermost, then context and data parallelism, then the
stages of a pipeline outermost, as Megatron and torchtitan do.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from weft.hardware.dtypes import item_bytes, output_dtype


class LayerKind(NamedTuple):
    """What distinguishes layers of one model: routed experts, and attention to all positions."""

    experts: bool
    full: bool


class LayerWeights(NamedTuple):
    """Parameters that one rank has of a layer: its experts apart from everything else."""

    dense: int
    expert: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.dense + self.expert


@dataclass(frozen=True, slots=True)
class Transformer:
    """Shape of a model, how it is run and how ranks share it; every field is a setting.

    ``batch`` is sequences of the whole job, of ``seq`` tokens. ``mode`` is ``train``, ``prefill``
    or ``decode`` (one token a sequence that sees ``seq`` before it). ``math`` is the dtype of
    products where it is another than that of the data. docs/models.md lists all settings.
    """

    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    kv_heads: int = 0
    gated: bool = False  # two products and an elementwise product before the last one
    causal: bool = True
    experts: int = 0
    topk: int = 2
    batch: int = 8
    micro_batch: int = 0  # sequences at once: 0 is one in a pipeline, else all of a rank
    mode: str = "train"
    dtype: str = "bf16"
    tp: int = 1
    pp: int = 1
    ep: int = 1
    fsdp: bool = False  # the same as zero=3
    # none, selective (attention), selective_op (torchtitan's policy by op), moe_act (the activation
    # of experts), mla_up_proj (what expands compressed queries and keys) or full
    recompute: str = "none"
    math: str = ""
    flash: bool = True  # attention does not write its scores
    fused_softmax: bool = False  # without flash: scale, causal mask and softmax in one kernel
    fused_loss: bool = True  # cross entropy in one kernel, else in passes over fp32 logits
    fused_accumulation: bool = True  # products add to gradients of earlier micro batches
    fused_experts: bool = True  # biases and clamps of experts in kernels that run anyway
    fused_rotary: bool = True  # positions turn queries and keys in one kernel
    frozen: bool = False  # weights get no gradients
    scored: int = 0  # tokens of a sequence that are predicted, 0 for all, of a prefill the last
    interleave: int = 1  # chunks of layers that a stage of the pipeline holds
    rotary: bool = False  # positions turn queries and keys
    dropout: bool = False  # in kernels of its own
    clip: bool = False  # the norm of all gradients is computed

    # Attention
    head_size: int = 0  # elements of a head, where it is not hidden / heads
    q_rank: int = 0  # of multi-head latent attention (arXiv 2405.04434): compressed queries,
    kv_rank: int = 0  # compressed keys and values (0: no latent attention),
    rope_dim: int = 0  # elements of a head that positions turn, in addition to head_size,
    v_dim: int = 0  # and elements of a value
    window: int = 0  # positions that a query sees, 0 for all
    full_every: int = 0  # every n-th layer sees all positions, 0 for none
    chunked: bool = False  # windows do not slide: a query sees its own chunk
    kv_dtype: str = ""  # of cached keys and values, where it is not that of activations
    qk_norm: bool = False  # queries and keys are normalized
    qk_norm_span: bool = False  # over all heads together: ranks of tp sum their squares
    post_norm: bool = False  # results of attention and MLP are normalized too
    parallel_block: bool = False  # attention and MLP read the same normalized input

    # Experts
    expert_ffn: int = 0  # width of one expert, where it is not ffn
    shared_ffn: int = 0  # width of all experts together that every token takes
    dense_layers: int = 0  # first layers without experts
    moe_every: int = 1  # every n-th layer has experts
    imbalance: float = 1.0  # tokens of the fullest expert over the mean
    expert_math: str = ""  # dtype of the products of experts, where servers have another than math
    capacity: float = 0.0  # at most so many times the mean reach an expert, 0 for no limit
    expert_bias: bool = False  # products of experts add biases
    clamped: bool = False  # the activation of experts clamps its inputs
    dispatcher: str = "alltoall"  # or flex: a token goes once to each node and rank (DeepEP)
    ep_overlap: bool = False  # experts' exchange runs behind another micro batch's computation

    # Ends, and what is trained
    tied: bool = False  # the head has the weights of the embedding
    mtp: int = 0  # modules that predict further tokens: a layer and a head each
    lora: int = 0  # rank of adapters of frozen products, 0 for none
    lora_mlp: bool = False  # the products of the MLP have adapters too

    # How ranks share the work
    cp: int = 1
    cp_kind: str = "ring"  # ring, allgather or ulysses
    dp: int = 0  # data-parallel ranks, 0 for what the others leave
    sp: bool = False  # the ranks of tp share the sequence outside their products
    tp_overlap: bool = False  # products and the sums of tp run in pieces, overlapped
    etp: int = 0  # ranks that share one expert, 0 for tp
    zero: int = 0  # 1 shares optimizer states, 2 gradients, 3 weights
    shard: int = 0  # ranks that share them, 0 for all data-parallel ranks (HSDP)
    reshard: bool = True  # gathered weights are dropped after the forward pass
    prefetch: int = 1  # layers whose weights are gathered ahead
    overlap_grad: bool = True  # gradients are reduced during the backward pass
    overlap_param: bool = True  # zero 1 and 2: weights are gathered in the next forward pass
    param_broadcast: bool = False  # zero 1 and 2: owners of whole tensors broadcast them at the end
    bucket: int = 25 << 20  # bytes of gradients that are reduced together (DDP: 25 MiB)
    grad_dtype: str = ""  # of reduced gradients, where it is not that of activations
    schedule: str = "1f1b"  # of a pipeline: 1f1b, gpipe, zb (zero-bubble H1) or dualpipe
    stage_layers: tuple[int, ...] = ()  # layers of each chunk in model order, if uneven
    count_ends: bool = False  # the embedding and the head count as a layer of their stages
    recompute_layers: int = 0  # layers of a stage that are recomputed, 0 for all

    @property
    def head_dim(self) -> int:
        """Elements of one head; of latent attention those that positions do not turn."""
        return self.head_size or self.hidden // self.heads

    @property
    def qk_dim(self) -> int:
        """Elements of a query or a key of one head."""
        return self.head_dim + (self.rope_dim if self.kv_rank else 0)

    @property
    def value_dim(self) -> int:
        """Elements of a value of one head."""
        return self.v_dim or self.head_dim

    @property
    def qkv(self) -> int:
        """Width of queries, keys and values together."""
        return self.qkv_of(1)

    def qkv_of(self, tp: int) -> int:
        """Width of queries, keys and values on one of ``tp`` ranks, which has a key head at least.

        >>> Transformer(1024, 1, 16, 4096, 100, 128, kv_heads=2).qkv_of(4)  # 4 + 1 + 1 heads
        384
        """
        kv = self.kv_heads_of(tp)
        return self.heads // tp * self.qk_dim + kv * (self.qk_dim + self.value_dim)

    def kv_heads_of(self, tp: int) -> int:
        """Heads of keys and values on one of ``tp`` ranks."""
        return max(1, (self.kv_heads or self.heads) // tp)

    @property
    def attention_weights(self) -> int:
        """Parameters of attention and norms of a layer."""
        return self.attention_weights_of(1)

    def attention_weights_of(self, tp: int) -> int:
        """Parameters of attention and norms of a layer on one of ``tp`` ranks."""
        out = self.heads // tp * self.value_dim * self.hidden
        norms = (4 if self.post_norm else 2) * self.hidden + 2 * self.head_dim * self.qk_norm
        if not self.kv_rank:
            return self.hidden * self.qkv_of(tp) + out + norms
        heads = self.heads // tp  # what compresses is on every rank, as in Megatron
        if self.q_rank:
            queries = self.hidden * self.q_rank + self.q_rank * heads * self.qk_dim + self.q_rank
        else:
            queries = self.hidden * heads * self.qk_dim
        keys = self.hidden * (self.kv_rank + self.rope_dim) + self.kv_rank
        keys += self.kv_rank * heads * (self.head_dim + self.value_dim)
        return queries + keys + out + norms

    def inner_weights(self, width: int) -> int:
        """Parameters of an MLP of that width."""
        return (3 if self.gated else 2) * self.hidden * width

    @property
    def expert_width(self) -> int:
        """Inner width of one expert."""
        return self.expert_ffn or self.ffn

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert."""
        return self.etp or self.tp

    def layer_weights(self, kind: LayerKind) -> LayerWeights:
        """Parameters of a layer on one rank."""
        attention = self.attention_weights_of(self.tp)
        if not kind.experts:
            return LayerWeights(attention + self.inner_weights(self.ffn) // self.tp, 0)
        shared = self.inner_weights(self.shared_ffn) // self.tp
        router = self.hidden * self.experts
        routed = self.inner_weights(self.expert_width) // self.expert_tp
        return LayerWeights(attention + shared + router, self.experts // self.ep * routed)

    def adapter_weights(self, kind: LayerKind) -> int:
        """Parameters of the adapters of a layer on one rank: the only ones that are trained.

        Latent attention has one at its last product, experts have none.
        """
        products = [(self.out_width, self.hidden)]
        if not self.kv_rank:
            products.append((self.hidden, self.qkv_of(self.tp)))
        if self.lora_mlp and not kind.experts:
            inner = self.ffn // self.tp
            products += [(self.hidden, inner * (2 if self.gated else 1)), (inner, self.hidden)]
        return self.lora * sum(k + n for k, n in products)

    @property
    def cache_item(self) -> int:
        """Bytes of an element of cached keys and values, which products do not write in fp8."""
        return ceil(item_bytes(self.kv_dtype or output_dtype(self.dtype)))

    def keys_seen(self, *, full: bool) -> float:
        """Return the keys that a query sees in the mean, in a layer with or without a window."""
        window = self.seq if full else min(self.seq, self.window)
        if self.mode == "decode" or not self.causal:
            return window
        if self.chunked:
            return window / 2
        # The first queries see only those before them: the mean of min(position, window).
        return window * (1 - window / (2 * self.seq))

    @property
    def out_width(self) -> int:
        """Width of what attention gives on one rank."""
        return self.heads // self.tp * self.value_dim

    @property
    def vocab_of_rank(self) -> int:
        """Entries of the vocabulary on one rank: padded where tp does not divide them."""
        return -(-self.vocab // self.tp)

    @property
    def is_dual(self) -> bool:
        """Whether micro batches enter at both ends of the pipeline, which holds layers twice."""
        return self.schedule == "dualpipe" and self.pp > 1 and self.mode == "train"

    @property
    def overlaps_experts(self) -> bool:
        """Whether forward and backward passes run in pairs, to hide the exchange of experts."""
        return self.ep_overlap and self.ep > 1 and self.mode == "train"

    @property
    def trains_weights(self) -> bool:
        """Whether the weights of the model itself get gradients."""
        return not (self.frozen or self.lora)

    @property
    def zero_stage(self) -> int:
        """What data-parallel ranks share: 0 nothing, 3 everything."""
        return 3 if self.fsdp else self.zero

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of every layer."""
        return _kinds(self)

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self._counted(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: of routed experts its topk."""
        return self._counted(self.topk if self.experts else 0)

    def _counted(self, experts: int) -> int:
        total = (1 if self.tied else 2) * self.vocab * self.hidden + self.hidden
        kinds = self.kinds + self.kinds[-1:] * self.mtp
        routed = self.inner_weights(self.expert_width)
        for kind in kinds:
            total += self.attention_weights
            if kind.experts:
                total += self.inner_weights(self.shared_ffn) + self.hidden * self.experts
                total += experts * routed
            else:
                total += self.inner_weights(self.ffn)
        return total + self.mtp * (2 * self.hidden * self.hidden + 2 * self.hidden)


@lru_cache(maxsize=256)
def _kinds(model: Transformer) -> tuple[LayerKind, ...]:
    return tuple(
        LayerKind(
            bool(model.experts)
            and layer >= model.dense_layers
            and (layer + 1) % model.moe_every == 0,
            not model.window or bool(model.full_every and (layer + 1) % model.full_every == 0),
        )
        for layer in range(model.layers)
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """``count`` sequences of a served batch: each brings ``queries`` tokens and sees ``keys``."""

    count: int
    queries: int
    keys: int
