"""How the ranks of a job share a transformer: what divides, and what memory each needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import UsageError
from weft.hardware.dtypes import item_bytes, output_dtype
from weft.models.building import ITEM_BYTES
from weft.schedule.values import Group
from weft.workload.step import Memory

if TYPE_CHECKING:
    from weft.models.transformer import Transformer


class Layout:
    """How ranks share the work; refuses what does not divide."""

    def __init__(self, model: Transformer, num_ranks: int) -> None:
        inner = model.tp * model.pp
        if num_ranks % inner:
            raise UsageError(
                f"{num_ranks} ranks do not divide into tp {model.tp} times pp {model.pp}",
                f"Use a multiple of {inner}.",
            )
        self.dp = num_ranks // inner
        _require_parts(model, self.dp)
        local = model.batch // self.dp
        self.micro = model.micro_batch or (1 if model.pp > 1 else local)
        if local % self.micro:
            raise UsageError(f"{local} samples a rank do not divide into batches of {self.micro}")
        self.num_micro = local // self.micro
        _require_interleaving(model, self.num_micro)
        self.groups = {
            "tp": Group(model.tp),
            "dp": Group(self.dp, model.tp),
            "ep": Group(model.ep, model.tp),
            "pp": Group(model.pp, model.tp * self.dp),
            "pp back": Group(model.pp, model.tp * self.dp),
        }
        if model.ep > 1:  # ranks that hold the same experts
            self.groups["edp"] = Group(self.dp // model.ep, model.tp * model.ep)


def _require_parts(model: Transformer, dp: int) -> None:
    """Refuse a batch, heads, experts or layers that the ranks cannot share."""
    if model.batch < dp:
        raise UsageError(
            f"{dp} data-parallel ranks are more than the {model.batch} samples of a batch",
            f"Use --set batch={dp} or more, or more of tp and pp.",
        )
    if model.batch % dp:
        raise UsageError(
            f"a batch of {model.batch} does not divide among {dp} data-parallel ranks",
            f"Use --set batch={model.batch // dp * dp}.",
        )
    for what, size in (("heads", model.heads), ("ffn", model.ffn)):
        if size % model.tp:
            raise UsageError(f"{size} {what} do not divide among tp {model.tp}")
    if model.ep > 1 and (not model.experts or model.experts % model.ep or dp % model.ep):
        raise UsageError(
            f"ep {model.ep} must divide the {model.experts} experts and the {dp} "
            "data-parallel ranks"
        )
    if model.layers < model.pp:
        raise UsageError(f"{model.pp} stages are more than {model.layers} layers")


def _require_interleaving(model: Transformer, num_micro: int) -> None:
    if model.interleave > 1 and (
        num_micro % model.pp or model.layers < model.pp * model.interleave
    ):
        raise UsageError(
            f"{num_micro} micro batches and {model.layers} layers cannot be interleaved "
            f"{model.interleave} times over {model.pp} stages",
            "Use a multiple of pp micro batches, and a layer for every chunk.",
        )


def split(total: int, parts: int) -> list[int]:
    """Cut a number into parts, the first ones larger where it does not divide."""
    return [total // parts + (place < total % parts) for place in range(parts)]


def memory_of(model: Transformer, layout: Layout) -> Memory:
    """Weights, gradients and moments of the fullest stage; activations as arXiv 2205.05198."""
    stored = ITEM_BYTES[model.dtype]
    item = int(item_bytes(output_dtype(model.dtype)))  # of activations and gradients
    layers = split(model.layers, model.pp)[0]
    experts = max(1, model.experts // model.ep)
    dense = layers * (model.attention_weights // model.tp)
    dense += (2 if model.pp == 1 else 1) * model.vocab * model.hidden // model.tp
    inner = layers * (model.mlp_weights // model.tp) * experts
    held = dense + inner
    kept_here = held  # of weights, gradients and moments
    if model.fsdp:  # experts are shared out among those ranks alone that hold the same ones
        kept_here = dense // layout.dp + inner // (layout.dp // model.ep)
    tokens = layout.micro * (1 if model.mode == "decode" else model.seq)
    if model.mode != "train":
        kv = 2 * (model.kv_heads or model.heads) * model.head_dim // model.tp
        cache = layout.num_micro * layout.micro * model.seq * kv * layers * stored
        return Memory(
            weights=held * stored, activations=8 * tokens * model.hidden * item, other=cache
        )
    # 34 bytes a token and hidden element in half precision without the scores, two of them kept
    # whole; a stage keeps as many micro batches as stages follow it.
    each = tokens * model.hidden * (10 + 24 / model.tp) * item / 2
    flying = min(model.pp, layout.num_micro)
    kept = tokens * model.hidden * item if model.recompute else each
    activations = int(flying * layers * kept + (each if model.recompute else 0))
    activations += tokens * model.vocab // model.tp * (item + 4)
    if model.frozen:
        return Memory(weights=kept_here * stored, activations=activations)
    return Memory(
        weights=kept_here * stored,
        gradients=kept_here * item,
        optimizer=kept_here * (12 if stored < 4 else 8),
        activations=activations,
        other=2 * (held // layers) * stored if model.fsdp else 0,
    )
