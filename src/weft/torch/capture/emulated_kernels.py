"""Fused GPU kernels that replace chains of CPU ops: attention, RMSNorm, RNNs.

They take the place of torch's while a step is captured, so that what is recorded is theirs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from weft.errors import CaptureError

_LIBRARY: Any = torch.library.Library


@contextlib.contextmanager
def gpu_kernels() -> Iterator[None]:
    """Run the fused kernels of a GPU where a CPU has none, however they are called."""
    library: Any = _LIBRARY("aten", "IMPL")
    for name, kernel in FUSED.items():
        library.impl(name, kernel, "AutogradCPU")
    for name in _WIDENED.split():
        library.impl(name, _widened(name), "AutocastCPU")
    try:
        yield
    finally:
        library._destroy()  # noqa: SLF001 - nothing public takes a kernel away again


def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Run one kernel that moves what a layer norm moves; a CPU would run six."""
    return torch.ops.aten.native_layer_norm(x, shape, weight, None, eps or 1e-6)[0]


def fused_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - as torch has it
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Choose the kernel that ``scaled_dot_product_attention`` runs on a GPU.

    FlashAttention takes 16-bit tensors without a mask whose heads are equally wide, the
    memory-efficient kernel takes the rest (torch, sdp_utils.cpp). Both are priced as attention.
    Where ``sdpa_kernel`` leaves only the products and the softmax, these are run.
    """
    if query.dim() == 3:
        query, key, value = (each.unsqueeze(0) for each in (query, key, value))
        options: Any = {"scale": scale, "enable_gqa": enable_gqa}
        whole = fused_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
        return whole.squeeze(0)
    flash_on = torch._C._get_flash_sdp_enabled() or torch._C._get_cudnn_sdp_enabled()  # noqa: SLF001
    efficient_on = torch._C._get_mem_efficient_sdp_enabled()  # noqa: SLF001
    half = flash_on and query.dtype in (torch.bfloat16, torch.float16)
    fits = attn_mask is None and half and query.shape[-1] == value.shape[-1] <= 256
    if not fits and not efficient_on and torch._C._get_math_sdp_enabled():  # noqa: SLF001
        math = torch.ops.aten._scaled_dot_product_attention_math  # noqa: SLF001
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return math(query, key, value, attn_mask, dropout_p, is_causal, **options)[0]
    if fits:
        flash = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa and key.shape[1] != query.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            filled = attn_mask.new_zeros(attn_mask.shape, dtype=query.dtype)
            attn_mask = filled.masked_fill(attn_mask.logical_not(), float("-inf"))
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention  # noqa: SLF001
    return efficient(query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale)[0]


# Ops that autocast runs in fp32 on CUDA, but not on a CPU (torch, autocast_mode.h).
_WIDENED = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim
nuclear_norm nuclear_norm.dim cosine_similarity dist pdist renorm logsumexp upsample_nearest2d
upsample_bilinear2d upsample_bicubic2d softmax.int log_softmax.int cumprod cumsum
linalg_vector_norm linalg_matrix_norm sum sum.dim_IntList norm.Scalar norm.ScalarOpt_dim
norm.ScalarOpt_dim_dtype
"""
_KEYS: Any = torch._C  # noqa: SLF001


def _widened(name: str) -> Callable[..., Any]:
    """Return what autocast on CUDA makes of an op of 16-bit tensors: its result is fp32."""
    base, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload or "default")
    without = _KEYS.DispatchKeySet(_KEYS.DispatchKey.AutocastCPU)

    def run(*args: Any, **kwargs: Any) -> Any:
        with _KEYS._ExcludeDispatchKeyGuard(without):  # noqa: SLF001
            half = _is_half(args[0]) and kwargs.get("dtype", _given(op, args)) is None
            if base == "softmax" and half and args[0].dtype == torch.float16:
                return torch.ops.aten._softmax(args[0], args[1], True)  # noqa: SLF001
            if base in ("sum", "linalg_vector_norm") and half:  # they convert as they read
                return op(*args, **kwargs, dtype=torch.float32)
            return op(*(each.float() if _is_half(each) else each for each in args), **kwargs)

    return run


def _given(op: Any, args: Any) -> Any:
    """Return the dtype among the arguments of an op by place."""
    names = [argument.name for argument in op._schema.arguments]  # noqa: SLF001
    place = names.index("dtype") if "dtype" in names else len(args)
    return args[place] if place < len(args) else None


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)


class _Recurrent(torch.autograd.Function):
    """One direction of a layer of an RNN as cuDNN runs it.

    Products with the inputs of all steps are one; those with the state follow each other.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, state: Any, w_in: Any, w_state: Any, *biases: Any) -> Any:
        steps = x.shape[0]
        gates = torch.mm(x.flatten(0, 1), w_in.t())
        for _ in range(steps):
            torch.mm(state, w_state.t())
        ctx.save_for_backward(x, state, w_in, w_state)
        ctx.num_biases = len(biases)
        width = state.shape[-1]
        return gates.sigmoid().view(steps, -1, gates.shape[-1])[..., :width]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, state, w_in, w_state = ctx.saved_tensors
        gates = gradient.new_empty(*gradient.shape[:2], w_in.shape[0]).sigmoid_()
        for each in gates.unbind():
            before = torch.mm(each, w_state)
        flat = gates.flatten(0, 1)
        states = state.new_empty(flat.shape[0], state.shape[-1])
        bias = [flat.sum(0)] * ctx.num_biases if ctx.num_biases else []
        d_x = torch.mm(flat, w_in).view_as(x)
        return (d_x, before, torch.mm(flat.t(), x.flatten(0, 1)), torch.mm(flat.t(), states), *bias)


def _recurrent(*, cell: bool) -> Callable[..., Any]:
    """Return the kernels of nn.LSTM, whose state has a ``cell``, or of nn.GRU and nn.RNN."""

    def run(  # noqa: PLR0913, PLR0917 - as torch has it
        x: Any,
        hx: Any,
        weights: Any,
        has_biases: bool,  # noqa: FBT001
        num_layers: int,
        dropout: float,
        train: bool,  # noqa: FBT001
        bidirectional: bool,  # noqa: FBT001
        batch_first: bool,  # noqa: FBT001
    ) -> Any:
        directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
        if len(weights) != num_layers * directions * each:
            raise CaptureError(
                "nn.LSTM: proj_size cannot be captured",
                "Write the projection as a Linear layer while the step is captured.",
            )
        states = (hx[0] if cell else hx).unbind()
        x, last = x.transpose(0, 1) if batch_first else x, []
        for layer in range(num_layers):
            outputs = []
            for index in range(layer * directions, (layer + 1) * directions):
                own = weights[index * each : (index + 1) * each]
                outputs.append(_Recurrent.apply(x, states[index], *own))  # type: ignore[no-untyped-call]
                last.append(outputs[-1][-1])
            x = torch.cat(outputs, -1) if bidirectional else outputs[0]
            if dropout and train and layer < num_layers - 1:
                x = nn.functional.dropout(x, dropout)
        x, state = x.transpose(0, 1) if batch_first else x, torch.stack(last)
        return (x, state, torch.empty_like(state)) if cell else (x, state)

    return run


# Ops that are one kernel on a GPU and several on a CPU.
FUSED = {
    "scaled_dot_product_attention": fused_attention,
    "rms_norm": _rms_norm,
    "lstm.input": _recurrent(cell=True),
    **{f"{name}.input": _recurrent(cell=False) for name in ("gru", "rnn_tanh", "rnn_relu")},
}
