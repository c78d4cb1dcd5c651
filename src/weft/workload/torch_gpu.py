"""What a GPU does otherwise than the CPU on which a step is captured.

Fake tensors stand on the CPU, because autograd needs a device that exists. So code that asks for
CUDA is answered as a GPU would answer it: devices, streams and memory of ``torch.cuda``, fused
kernels where only a CPU would run a chain of ops, optimizers over lists of tensors, autocast.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from weft.errors import CaptureError
from weft.workload.torch_streams import Streams, stream_api

_CPU = torch.device("cpu")
DEVICES_PER_HOST = 8
Patch = contextlib.AbstractContextManager[Any]


def is_gpu(value: Any) -> bool:
    """Return whether a value names a GPU."""
    if isinstance(value, str):
        return value.partition(":")[0] == "cuda"
    return isinstance(value, torch.device) and value.type == "cuda"


def gpu_patches(streams: Streams, rank: int, world_size: int) -> list[Patch]:
    """Return the patches that make ``torch`` answer as on a machine with GPUs."""
    count = min(world_size, DEVICES_PER_HOST)
    cuda = {**_cuda_api(rank % count, count), **stream_api(streams)}
    foreach = "_get_foreach_kernels_supported_devices"
    return [
        *(mock.patch.object(torch.cuda, name, value) for name, value in cuda.items()),
        # DTensor, FSDP and pipelines ask the module of the device they see: that of the CPU.
        *(mock.patch.object(torch.cpu, n, v, create=True) for n, v in stream_api(streams).items()),
        *(mock.patch.object(torch.accelerator, n, cuda[m]) for n, m in _ACCELERATOR.items()),
        mock.patch.object(torch.cuda.nvtx, "_nvtx", _Quiet()),
        mock.patch.object(torch.cuda.nccl, "version", _answer((2, 28, 0))),
        mock.patch.object(torch.version, "cuda", torch.version.cuda or "12.8"),
        mock.patch.object(dist, "is_nccl_available", _answer(True)),
        mock.patch.object(torch.autocast, "__init__", _on_cpu(torch.autocast.__init__)),
        mock.patch(f"torch.utils._foreach_utils.{foreach}", _every_device),
        mock.patch(f"torch.optim.optimizer.{foreach}", _every_device),
        mock.patch("torch.optim.optimizer._get_fused_kernels_supported_devices", _every_device),
        # Optimizers and clip_grad_norm_ take lists only of the types in these two.
        *(mock.patch(each, [*pkgutil.resolve_name(each), FakeTensor]) for each in _LISTED),
        mock.patch.object(nn.Module, "to", _module_to),
        mock.patch.object(torch.Tensor, "record_stream", _answer(None)),
        mock.patch.object(torch.autograd, "_engine_run_backward", _redirected_backward),
        gpu_kernels(),
        AsOnGpu(),
    ]


_LISTED = (
    "torch.optim.optimizer._foreach_supported_types",
    "torch.utils._foreach_utils._foreach_supported_types",
)

_ACCELERATOR = {
    "current_stream": "current_stream",
    "set_stream": "set_stream",
    "synchronize": "synchronize",
    "is_available": "is_available",
    "device_count": "device_count",
    "current_device_index": "current_device",
    "set_device_index": "set_device",
}


def _cuda_api(device: int, count: int) -> dict[str, Any]:
    """Return what code asks of ``torch.cuda`` besides streams."""
    nothing = "set_device empty_cache reset_peak_memory_stats reset_max_memory_allocated init"
    nothing += " manual_seed manual_seed_all seed seed_all ipc_collect _lazy_init"
    nothing += " set_rng_state set_rng_state_all get_rng_state"
    zero = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved"
    properties = SimpleNamespace(
        name="GPU", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132
    )
    return {
        **{name: _answer(None) for name in nothing.split()},
        **{name: _answer(0) for name in zero.split()},
        **dict.fromkeys(("is_available", "is_bf16_supported"), _answer(True)),
        "device_count": _answer(count),
        "current_device": _answer(device),
        "get_device_name": _answer(properties.name),
        "get_device_capability": _answer((properties.major, properties.minor)),
        "get_device_properties": _answer(properties),
        "get_rng_state_all": lambda *_args, **_options: [],
        "memory_stats": lambda *_args, **_options: {},
        "mem_get_info": _answer((properties.total_memory, properties.total_memory)),
        **dict.fromkeys(("CUDAGraph", "graph", "make_graphed_callables"), _NoGraph),
    }


def _answer(value: Any) -> Callable[..., Any]:
    # Each is a function of its own: torch.compile tells torch's functions apart by identity.
    return lambda *_args, **_options: value


class _NoGraph:
    """Stands where CUDA graphs are made; a class, because annotations name it."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        raise CaptureError(
            "CUDA graphs cannot be captured: fake tensors have no memory to replay on",
            "Run the step without the graph while it is captured.",
        )


class _Quiet:
    """Accepts every call: marks for a profiler."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0


def _every_device() -> list[str]:
    return ["cpu", "cuda"]


def _on_cpu(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def wrapped(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        method(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return wrapped


_to: Any = nn.Module.to


def _module_to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Move a module to the CPU where a GPU is named, also by its number."""
    args = tuple(_CPU if is_gpu(value) or _is_number(value) else value for value in args)
    if is_gpu(kwargs.get("device")) or _is_number(kwargs.get("device")):
        kwargs["device"] = _CPU
    return _to(module, *args, **kwargs)  # type: ignore[no-any-return]


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Functions whose first argument (after the tensor) or ``device`` may be the number of a GPU.
_TAKES_NUMBER = (torch.Tensor.to, torch.Tensor.cuda, torch.device)
_ONE_HOT: Any = nn.functional.one_hot


class AsOnGpu(TorchFunctionMode):
    """Redirects to the CPU what is asked of a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Redirect one function."""
        kwargs = kwargs or {}
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory) or _is_initializer(func):
            return args[0] if args else kwargs["tensor"]
        if func is _ONE_HOT and kwargs.get("num_classes", (*args, -1)[1]) < 0:
            raise CaptureError(
                "one_hot: num_classes is not given, and fake tensors have no largest value",
                "Pass num_classes while the step is captured.",
            )
        if func is torch.device and args and _is_number(args[0]):
            return _CPU
        if func is torch.Tensor.to and len(args) > 1 and _is_number(args[1]):
            args = (args[0], _CPU, *args[2:])
        if any(is_gpu(value) for value in args) and func is not torch.device:
            args = tuple(_CPU if is_gpu(value) else value for value in args)
        if is_gpu(kwargs.get("device")) or _is_number(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        if "pin_memory" in kwargs:
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


_run_backward: Any = torch.autograd._engine_run_backward  # type: ignore[attr-defined]  # noqa: SLF001


def _redirected_backward(*args: Any, **kwargs: Any) -> Any:
    """Redirect in the backward pass, too: activation checkpointing runs user code there.

    torch takes a mode off while ``backward``, a function that the mode sees, runs.
    """
    with AsOnGpu():
        return _run_backward(*args, **kwargs)


class AsOnCpu(TorchFunctionMode):
    """Leaves out first values of weights; everything else is done as asked."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Leave initialisation out."""
        if _is_initializer(func):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _is_initializer(func: Any) -> bool:
    return getattr(func, "__module__", "") == "torch.nn.init"


_LIBRARY: Any = torch.library.Library


@contextlib.contextmanager
def gpu_kernels() -> Iterator[None]:
    """Run the fused kernels of a GPU where a CPU has none, however they are called."""
    library: Any = _LIBRARY("aten", "IMPL")
    for name, kernel in FUSED.items():
        library.impl(name, kernel, "AutogradCPU")
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
    """
    if query.dim() == 3:
        query, key, value = (each.unsqueeze(0) for each in (query, key, value))
        options: Any = {"scale": scale, "enable_gqa": enable_gqa}
        whole = fused_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
        return whole.squeeze(0)
    half = query.dtype in (torch.bfloat16, torch.float16)
    if attn_mask is None and half and query.shape[-1] == value.shape[-1] <= 256:
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
        return gates.sigmoid().unflatten(0, (steps, -1))[..., :width]

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

    def run(
        x: Any,
        hx: Any,
        weights: Any,
        has_biases: bool,  # noqa: FBT001 - as torch has it
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
            for place in range(layer * directions, (layer + 1) * directions):
                own = weights[place * each : (place + 1) * each]
                outputs.append(_Recurrent.apply(x, states[place], *own))  # type: ignore[no-untyped-call]
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
