"""Keys and values of a model on one rank: what a token takes, and in which blocks it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.errors import NoPlanError, UsageError
from weft.models.transformer_memory import served_bytes
from weft.units import format_size

if TYPE_CHECKING:
    from weft.hardware import Device
    from weft.models.transformer import Transformer

TOKENS = 16  # of a block, as vLLM has them
# What servers leave for activations, graphs and fragments: vLLM uses nine tenths of a device.
_USED = 0.9


@dataclass(frozen=True, slots=True)
class KvCache:
    """What a rank keeps of each token, blocks of so many bytes, and room for so many tokens."""

    token_bytes: int
    block_bytes: int
    room: int

    def blocks(self, tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-tokens * self.token_bytes // self.block_bytes)


def kv_cache(model: Transformer, device: Device, block_bytes: int | None = None) -> KvCache:
    """Lay out the cache of a model whose ``tp`` ranks share its heads.

    A block is 16 tokens of the keys or of the values of one layer, if nobody says otherwise. Layers
    with a window keep few tokens, which are left out. Latent attention keeps its compressed keys
    and values whole on every rank.
    """
    if block_bytes is not None and block_bytes < 1:
        raise UsageError(f"a block of {block_bytes} bytes holds nothing", "Use 4KiB, say.")
    heads = max(1, (model.kv_heads or model.heads) // model.tp)
    item = model.cache_item
    each = heads * model.head_dim * item
    if model.kv_rank:
        each = (model.kv_rank + model.rope_dim) * item // 2
    token = 2 * sum(kind.full for kind in model.kinds) * each or 2 * each  # a window holds few
    weights = weight_bytes(model)
    left = int(_USED * device.memory_bytes) - weights
    if left < token:
        raise NoPlanError(
            f"the weights need {format_size(weights)} a rank; {device.title} has "
            f"{format_size(device.memory_bytes)}, of which a server uses nine tenths.",
            "Try: more ranks by --set tp=8, or --set dtype=fp8.",
        )
    return KvCache(token, block_bytes or TOKENS * each, left // token)


def weight_bytes(model: Transformer) -> int:
    """Return the bytes of weights on one rank; the embedding and the head are not quantized."""
    weights = [model.layer_weights(kind) for kind in model.kinds]
    ends = (1 if model.tied else 2) * model.vocab_of_rank * model.hidden
    return served_bytes(
        model, sum(each.dense for each in weights), sum(each.expert for each in weights), ends
    )
