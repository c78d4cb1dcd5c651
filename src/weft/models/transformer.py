"""Transformers, dense and of experts: their shape, how they are run and spread, and known ones.

Ranks are numbered with tensor parallelism innermost, then data parallelism, then the stages of a
pipeline outermost, as Megatron does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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


@dataclass(frozen=True, slots=True)
class Piece:
    """``count`` sequences of a served batch: each brings ``queries`` tokens and sees ``keys``."""

    count: int
    queries: int
    keys: int


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
