"""The shape and the flops of an op, from its arguments, in the form of its kernel family."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]
Shaped = tuple[str, tuple[int, ...], float]


def _product(a: torch.Tensor, b: torch.Tensor) -> Shaped:
    m, k = int(a.shape[-2]), int(a.shape[-1])
    n, batch = int(b.shape[-1]), math.prod(int(size) for size in a.shape[:-2])
    flops = 2.0 * batch * m * n * k
    return ("bmm", (batch, m, n, k), flops) if a.dim() > 2 else ("gemm", (m, n, k), flops)


def _mm(args: Sequence[Any], _outputs: Tensors) -> Shaped:
    return _product(args[0], args[1])


def _addmm(args: Sequence[Any], _outputs: Tensors) -> Shaped:
    return _product(args[1], args[2])


def _grouped(args: Sequence[Any], _outputs: Tensors) -> Shaped:
    """Read a product of groups of rows, each by a matrix of its own: experts of equal load.

    Which tensor has a side for groups tells which side of the product is split among them.
    """
    a, b = args[0], args[1]
    offsets = next((v for v in args[2:] if isinstance(v, torch.Tensor) and v.dim() == 1), None)
    groups = next((int(t.shape[0]) for t in (a, b) if t.dim() == 3), 0)
    groups = max(1, groups or (int(offsets.shape[0]) if offsets is not None else 1))
    m, k, n = int(a.shape[-2]), int(a.shape[-1]), int(b.shape[-1])
    if a.dim() == 2 and b.dim() == 3:
        m = -(-m // groups)
    elif a.dim() == 3 and b.dim() == 2:
        n = -(-n // groups)
    elif a.dim() == b.dim() == 2:  # gradients of weights: rows are summed group by group
        k = -(-k // groups)
    return "bmm", (groups, m, n, k), 2.0 * groups * m * n * k


def _mv(args: Sequence[Any], _outputs: Tensors) -> Shaped:
    m, k = (int(size) for size in args[0].shape)
    return "gemm", (m, 1, k), 2.0 * m * k


def _attention(family: str, first: int, flags: int = 3) -> Callable[..., Shaped]:
    """Read shapes from the query on; of what comes from ``flags`` on, the causal one may be set."""

    def shaped(args: Sequence[Any], _outputs: Tensors) -> Shaped:
        query, key, value = args[first : first + 3]
        batch, heads, queries, width = (int(size) for size in query.shape)
        # Heads of queries and values may be of two widths (MLA): one product is over each.
        dim = (width + int(value.shape[-1])) // 2
        kv_heads, keys = int(key.shape[1]), int(key.shape[2])
        causal = int(any(value is True for value in args[flags:]))
        # QK^T and PV forward; backward recomputes QK^T and makes dV, dP, dQ and dK
        # (FlashAttention, arXiv 2205.14135).
        products = 5 if family.endswith("backward") else 2
        # Row i of a causal mask sees keys - (queries - 1 - i): this is the mean.
        seen = keys - (queries - 1) / 2 if causal else keys
        flops = products * 2.0 * batch * heads * queries * seen * dim
        return family, (batch, heads, kv_heads, queries, keys, dim, causal), flops

    return shaped


def _rows(family: str) -> Callable[..., Shaped]:
    """Read rows and width of a tensor whose last side is taken together."""

    def shaped(args: Sequence[Any], _outputs: Tensors) -> Shaped:
        tensor = args[0]
        width = int(tensor.shape[-1]) if tensor.dim() else 1
        return family, (max(1, tensor.numel() // max(1, width)), max(1, width)), 0.0

    return shaped


def _channels(family: str) -> Callable[..., Shaped]:
    """Read rows and width of a tensor that is taken together by channel."""

    def shaped(args: Sequence[Any], _outputs: Tensors) -> Shaped:
        tensor = args[0]
        rows = int(tensor.shape[1])
        return family, (rows, max(1, tensor.numel() // max(1, rows))), 0.0

    return shaped


def _embedding(args: Sequence[Any], _outputs: Tensors) -> Shaped:
    rows, dim = (int(size) for size in args[0].shape)
    return "embedding", (max(1, args[1].numel()), rows, dim, 1), 0.0


def _bag(args: Sequence[Any], outputs: Tensors) -> Shaped:
    rows, dim = (int(size) for size in args[0].shape)
    bags = max(1, int(outputs[0].shape[0]))
    return "embedding", (bags, rows, dim, max(1, round(args[1].numel() / bags))), 0.0


def _sparse_backward(args: Sequence[Any], _outputs: Tensors) -> Shaped:
    """Return the cost of the gradients of looked-up rows, with the update of the rows."""
    bags, dim = (max(1, int(size)) for size in args[0].shape)
    pooling = max(1, round(args[1].numel() / bags))
    return "embedding-backward", (bags, int(args[6]), dim, pooling), 0.0


def _convolution(args: Sequence[Any], outputs: Tensors) -> Shaped:
    # A transposed one multiplies every element of its input by a filter, not of its output.
    multiplied = args[0] if args[6] is True else outputs[0]
    return "convolution", (), _filtered(multiplied, args[1])


def _convolution_backward(args: Sequence[Any], _outputs: Tensors) -> Shaped:
    gradient, given, weight = args[:3]
    multiplied = given if args[7] is True else gradient
    wanted = sum(bool(each) for each in args[10][:2])  # gradients of the input and of the weight
    return "convolution", (), wanted * _filtered(multiplied, weight)


def _filtered(tensor: torch.Tensor, weight: torch.Tensor) -> float:
    # Each element is multiplied by all weights of one output channel.
    return 2.0 * tensor.numel() * weight.numel() / max(1, int(weight.shape[0]))


SHAPED: dict[str, Callable[..., Shaped]] = {
    "mm": _mm,
    "bmm": _mm,
    "_scaled_mm": _mm,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "_addmm_activation": _addmm,
    "mv": _mv,
    **{
        f"_scaled_dot_product_{name}": _attention("attention", 0)
        for name in ("flash_attention", "flash_attention_for_cpu", "fused_attention_overrideable")
    },
    **{  # the fifth argument of these is whether the backward pass will need sums
        f"_scaled_dot_product_{name}": _attention("attention", 0, 5)
        for name in ("efficient_attention", "cudnn_attention")
    },
    **{
        f"_scaled_dot_product_{name}_backward": _attention("attention-backward", 1)
        for name in (
            *("flash_attention", "flash_attention_for_cpu", "efficient_attention"),
            *("cudnn_attention", "fused_attention_overrideable"),
        )
    },
    "_softmax": _rows("softmax"),
    "_log_softmax": _rows("softmax"),
    "_safe_softmax": _rows("softmax"),
    "_softmax_backward_data": _rows("softmax-backward"),
    "_log_softmax_backward_data": _rows("softmax-backward"),
    "native_layer_norm": _rows("norm"),
    "_fused_rms_norm": _rows("norm"),
    "native_layer_norm_backward": _rows("norm-backward"),
    "_fused_rms_norm_backward": _rows("norm-backward"),
    "native_batch_norm": _channels("norm"),
    "_native_batch_norm_legit": _channels("norm"),
    "_native_batch_norm_legit_functional": _channels("norm"),
    "cudnn_batch_norm": _channels("norm"),
    "native_batch_norm_backward": _channels("norm-backward"),
    "native_group_norm": _channels("norm"),
    "native_group_norm_backward": _channels("norm-backward"),
    "embedding": _embedding,
    "_embedding_bag": _bag,
    "_embedding_bag_forward_only": _bag,
    "_embedding_bag_backward": _sparse_backward,
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
