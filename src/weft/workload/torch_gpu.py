"""What a GPU does otherwise than the CPU on which a step is captured.

Fake tensors stand on the CPU, because autograd needs a device that exists. So code that asks for
CUDA is answered as a GPU would answer it: devices, streams and memory of ``torch.cuda``,
optimizers over lists of tensors, autocast; kernels are in torch_gpu_kernels.py.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from weft.errors import CaptureError
from weft.workload.torch_gpu_kernels import gpu_kernels
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
