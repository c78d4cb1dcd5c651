"""Emulation of a GPU on the CPU on which a step is captured.

Fake tensors stand on the CPU, because autograd needs a device that exists. So code that asks for
CUDA is answered as a GPU would answer it: devices, streams and memory of ``torch.cuda``,
optimizers over lists of tensors, autocast; kernels are in emulated_kernels.py.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from weft.errors import CaptureError
from weft.torch.capture.captured_streams import CapturedStreams, stream_api
from weft.torch.capture.emulated_kernels import gpu_kernels

_CPU = torch.device("cpu")
DEVICES_PER_HOST = 8
Patch = contextlib.AbstractContextManager[Any]


def is_gpu(value: Any) -> bool:
    """Return whether a value names a GPU."""
    if isinstance(value, str):
        return value.partition(":")[0] == "cuda"
    return isinstance(value, torch.device) and value.type == "cuda"


def gpu_patches(streams: CapturedStreams, rank: int, world_size: int) -> list[Patch]:
    """Return the patches that make ``torch`` answer as on a machine with GPUs."""
    count = min(world_size, DEVICES_PER_HOST)
    device = rank % count
    cuda = {**_cuda_api(device, count), **stream_api(streams)}
    modules = (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.profiler)
    foreach = "_get_foreach_kernels_supported_devices"
    return [
        *(
            mock.patch.object(module, name, value)
            for module in modules
            for name, value in cuda.items()
            if name in vars(module)
        ),
        # DTensor, FSDP and pipelines ask the module of the device they see: that of the CPU.
        *(mock.patch.object(torch.cpu, n, v, create=True) for n, v in stream_api(streams).items()),
        *(mock.patch.object(torch.accelerator, n, cuda[m]) for n, m in _accelerator(cuda)),
        mock.patch.object(torch.accelerator, "current_accelerator", _answer(torch.device("cuda"))),
        mock.patch.object(torch, "Stream", streams.Stream),
        mock.patch.object(torch, "Event", streams.Event),
        mock.patch.object(torch, "Generator", _Generator),
        mock.patch.object(torch, "set_default_device", _set_default_device),
        # A default that was set before is asked after AsOnGpu; this one is asked first.
        *([_CPU] if is_gpu(_default_device()) else []),
        mock.patch.object(dist, "get_backend", _answer("nccl")),
        *(mock.patch.object(torch.nested, name, _no_nested) for name in _NESTED),
        *(mock.patch.object(profiler, "profile", _NoProfile) for profiler in _PROFILERS),
        mock.patch.object(torch.cuda.nvtx, "_nvtx", _Quiet()),
        mock.patch.object(torch.cuda.nccl, "version", _answer((2, 28, 0))),
        mock.patch.object(torch.version, "cuda", torch.version.cuda or "12.8"),
        mock.patch.object(dist, "is_nccl_available", _answer(True)),
        mock.patch.object(torch, "is_autocast_enabled", _is_autocast_enabled),
        mock.patch.object(torch, "get_autocast_dtype", _get_autocast_dtype),
        mock.patch.object(torch, "get_autocast_gpu_dtype", _get_autocast_dtype),
        mock.patch.object(torch.autocast, "__init__", _on_cpu(torch.autocast.__init__)),
        mock.patch(f"torch.utils._foreach_utils.{foreach}", _every_device),
        mock.patch(f"torch.optim.optimizer.{foreach}", _every_device),
        mock.patch("torch.optim.optimizer._get_fused_kernels_supported_devices", _every_device),
        # Optimizers and clip_grad_norm_ take lists only of the types in these two.
        *(mock.patch(each, [*pkgutil.resolve_name(each), FakeTensor]) for each in _LISTED),
        mock.patch.object(nn.Module, "to", _module_to),
        mock.patch.object(torch.Tensor, "record_stream", _answer(None)),
        mock.patch.object(torch.autograd, "_engine_run_backward", _redirected_backward),
        mock.patch.object(FakeTensor, "tolist", _as_list),
        mock.patch.object(FakeTensor, "device", _device_of_user(torch.device("cuda", device))),
        gpu_kernels(),
        AsOnGpu(streams, device),
    ]


_LISTED = (
    "torch.optim.optimizer._foreach_supported_types",
    "torch.utils._foreach_utils._foreach_supported_types",
)

_RENAMED = {"current_device_index": "current_device", "set_device_index": "set_device"}
_PROFILERS = (torch.profiler, torch.autograd.profiler)
_NESTED = ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "narrow")


def _accelerator(cuda: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what ``torch.accelerator`` has of ``torch.cuda``, and under which name."""
    names = [name for name in vars(torch.accelerator) if name in cuda and not name.startswith("_")]
    return [*((name, name) for name in names), *_RENAMED.items()]


def _cuda_api(device: int, count: int) -> dict[str, Any]:
    """Return what code asks of ``torch.cuda`` besides streams."""
    nothing = "set_device empty_cache reset_peak_memory_stats reset_max_memory_allocated init"
    nothing += " manual_seed manual_seed_all seed seed_all ipc_collect _lazy_init"
    nothing += " set_rng_state set_rng_state_all get_rng_state set_per_process_memory_fraction"
    nothing += " reset_accumulated_memory_stats reset_max_memory_cached set_sync_debug_mode"
    nothing += " _record_memory_history _dump_snapshot _set_allocator_settings check_error"
    nothing += " empty_host_cache"
    zero = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved"
    zero += " memory_cached max_memory_cached get_sync_debug_mode initial_seed utilization"
    zero += " memory_usage temperature power_draw clock_rate current_blas_handle"
    properties = SimpleNamespace(  # of an H100, which get_device_capability says it is
        name="GPU",
        major=9,
        minor=0,
        total_memory=80 << 30,
        multi_processor_count=132,
        L2_cache_size=50 << 20,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10,
        warp_size=32,
        gcnArchName="sm_90",
        is_integrated=0,
        is_multi_gpu_board=0,
        uuid="00000000-0000-0000-0000-000000000000",
        pci_bus_id=device,
    )
    return {
        **{name: _answer(None) for name in nothing.split()},
        **{name: _answer(0) for name in zero.split()},
        **{n: _answer(True) for n in ("is_available", "is_initialized", "can_device_access_peer")},
        "is_bf16_supported": _answer(True),
        "is_current_stream_capturing": _answer(False),
        "device_count": _answer(count),
        "current_device": _answer(device),
        "get_device_name": _answer(properties.name),
        "get_device_capability": _answer((properties.major, properties.minor)),
        "get_device_properties": _answer(properties),
        "get_arch_list": _answer(["sm_90"]),
        "get_allocator_backend": _answer("native"),
        "get_rng_state_all": lambda *_args, **_options: [],
        "memory_snapshot": lambda *_args, **_options: [],
        "memory_summary": _answer("memory is counted by the capture"),
        "memory_stats": lambda *_args, **_options: _Zeros(),
        "host_memory_stats": lambda *_args, **_options: _Zeros(),
        "mem_get_info": _answer((properties.total_memory, properties.total_memory)),
        "cudart": lambda *_args: _Quiet(),
        "device": _DeviceContext,
        "device_of": _DeviceContext,
        **dict.fromkeys(("CUDAGraph", "graph", "make_graphed_callables"), _NoGraph),
    }


class _Zeros(dict[str, int]):
    """Statistics of memory: the capture counts it by itself."""

    def __missing__(self, key: str) -> int:
        return 0


class _DeviceContext(contextlib.nullcontext[None]):
    """Stands for ``torch.cuda.device``: a rank has one device."""

    def __init__(self, device: Any = None) -> None:
        super().__init__()
        self.idx = device


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


def _no_nested(*_args: Any, **_options: Any) -> None:
    raise CaptureError(
        "nested and jagged tensors cannot be captured: torch makes no fake ones of given lengths",
        "Pad to one length while the step is captured.",
    )


class _NoProfile:
    """Stands for a profiler: accepts every call, and there is nothing to show."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        pass

    def __enter__(self) -> _NoProfile:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_args, **_options: _NoProfile()

    def __str__(self) -> str:
        return ""

    def __iter__(self) -> Any:
        return iter(())


class _GeneratorType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _GENERATOR)

    def __call__(cls, *_device: Any, **_options: Any) -> Any:
        return _GENERATOR()


_GENERATOR: Any = torch.Generator


class _Generator(metaclass=_GeneratorType):
    """Makes generators on the CPU, whatever device they are asked for on."""


_default: Any = torch.set_default_device


def _set_default_device(device: Any) -> None:
    """Set the default, unless it is a GPU: all tensors are on one already."""
    if not is_gpu(device) and not _is_number(device):
        _default(device)


def _default_device() -> Any:
    known: Any = torch
    context = getattr(known._GLOBAL_DEVICE_CONTEXT, "device_context", None)  # noqa: SLF001
    return getattr(context, "device", None)


class _Quiet:
    """Accepts every call: marks for a profiler."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0


def _every_device() -> list[str]:
    return ["cpu", "cuda"]


def _on_cpu(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def wrapped(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or _autocast_dtype("cuda")
        method(self, device_type, dtype, *args, **kwargs)

    return wrapped


_autocast_enabled: Any = torch.is_autocast_enabled
_autocast_dtype: Any = torch.get_autocast_dtype


def _is_autocast_enabled(device_type: str = "cuda") -> bool:
    return bool(_autocast_enabled("cpu" if device_type == "cuda" else device_type))


def _get_autocast_dtype(device_type: str = "cuda") -> Any:
    on_gpu = device_type == "cuda" and _autocast_enabled("cpu")
    return _autocast_dtype("cpu" if on_gpu else device_type)


_to: Any = nn.Module.to


def _module_to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Move a module to the CPU where a GPU is named, also by its number."""
    args = tuple(_CPU if is_gpu(value) or _is_number(value) else value for value in args)
    if is_gpu(kwargs.get("device")) or _is_number(kwargs.get("device")):
        kwargs["device"] = _CPU
    return _to(module, *args, **kwargs)  # type: ignore[no-any-return]


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_ONE_HOT: Any = nn.functional.one_hot
_IS_CUDA: Any = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_SAME_TENSOR = (torch.Tensor.cuda, torch.Tensor.pin_memory)
_READS_ALL = (torch.Tensor.numpy, torch.Tensor.__array__)
_ASKS = frozenset((_ONE_HOT, torch.Tensor.get_device, _IS_CUDA, *_READS_ALL))
_DEVICE_MODE = str(Path(torch.__file__).parent / "utils" / "_device.py")
_TORCH, _OURS = str(Path(torch.__file__).parent), str(Path(__file__).parent)


class AsOnGpu(TorchFunctionMode):
    """Redirects calls for a GPU to the CPU, and shows the user a GPU."""

    def __init__(self, streams: CapturedStreams | None = None, device: int = 0) -> None:
        super().__init__()
        self._streams, self._device = streams, device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Redirect one function."""
        kwargs = kwargs or {}
        if func in _ASKS:
            return self._answered(func, args, kwargs, _caller())
        if func is torch.Tensor.cpu or (func is torch.Tensor.to and _names_cpu(args, kwargs)):
            self._to_host(args, kwargs, _caller())
        if func in _SAME_TENSOR or _is_initializer(func):
            return args[0] if args else kwargs["tensor"]
        if func is torch.device and args and _is_number(args[0]):
            return _CPU
        if func is torch.Tensor.to and len(args) > 1 and _is_number(args[1]):
            args = (args[0], _CPU, *args[2:])
        if func is not torch.device and any(map(is_gpu, args)):
            args = tuple(_CPU if is_gpu(value) else value for value in args)
        if kwargs:
            if is_gpu(kwargs.get("device")) or _is_number(kwargs.get("device")):
                kwargs = {**kwargs, "device": _CPU}
            if "pin_memory" in kwargs:
                kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)

    def _to_host(self, args: Any, kwargs: Any, caller: str) -> None:
        """Make the host wait for a copy to it, unless that was asked not to block."""
        blocking = not kwargs.get("non_blocking") and True not in args[2:3]
        if self._streams is not None and blocking and _is_user(caller):
            self._streams.on_host_wait("tensor.cpu", self._streams.current.front)

    def _answered(self, func: Any, args: Any, kwargs: Any, caller: str) -> Any:
        """Answer where a tensor is and what is in it; torch's own code needs what is true."""
        if func is _ONE_HOT and kwargs.get("num_classes", (*args, -1)[1]) < 0:
            raise CaptureError(
                "one_hot: num_classes is not given, and fake tensors have no largest value",
                "Pass num_classes while the step is captured.",
            )
        if func in _READS_ALL and isinstance(args[0], FakeTensor):
            return _read(args[0], torch.Tensor.numpy)
        found = func(*args, **kwargs)
        if not _is_user(caller) or args[0].device.type != "cpu":
            return found
        if func == _IS_CUDA:
            return True
        return self._device if func is torch.Tensor.get_device else found


def _names_cpu(args: Any, kwargs: Any) -> bool:
    """Return whether ``Tensor.to`` is asked for the CPU."""
    place = args[1] if len(args) > 1 else kwargs.get("device")
    return place == "cpu" if isinstance(place, str) else place == _CPU


def _caller() -> str:
    """Return the file of the code that called a function of torch."""
    frame = sys._getframe(2)  # noqa: SLF001 - the mode of ``with torch.device(..)`` may be between
    while frame.f_back is not None and frame.f_code.co_filename == _DEVICE_MODE:
        frame = frame.f_back
    return frame.f_code.co_filename


@functools.cache
def _is_user(path: str) -> bool:
    """Return whether code is neither torch's nor weft's."""
    return not path.startswith((_TORCH, _OURS))


_fake_device: Any = vars(FakeTensor)["device"].fget


def _device_of_user(device: torch.device) -> property:
    """Return the device of a tensor: the GPU that user code asked for; to torch itself, the CPU."""

    def where(tensor: Any) -> torch.device:
        found = _fake_device(tensor)
        if found is not None and _is_user(sys._getframe(1).f_code.co_filename):  # noqa: SLF001
            return device if found.type == "cpu" else found
        return found  # type: ignore[no-any-return]

    return property(where)


def _as_list(tensor: torch.Tensor) -> Any:
    """Return a list of values; the indices of a sampler are numbers of the host."""
    caller = sys._getframe(1).f_code.co_filename  # noqa: SLF001
    if "/torch/utils/data/" in caller and tensor.dim() == 1:
        return list(range(tensor.shape[0]))
    return _read(tensor, torch.Tensor.tolist)


def _read(tensor: torch.Tensor, convert: Callable[[torch.Tensor], Any]) -> Any:
    """Read all elements at once: the host waits, and each is what a value that is read is."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    value = tensor.detach().flatten()[0].item() if tensor.numel() else 0
    with unset_fake_temporarily():
        return convert(torch.full(shape, value, dtype=dtype))


_run_backward: Any = torch.autograd._engine_run_backward  # type: ignore[attr-defined]  # noqa: SLF001


def _redirected_backward(*args: Any, **kwargs: Any) -> Any:
    """Redirect in the backward pass, too: activation checkpointing runs user code there.

    torch takes a mode off while ``backward``, a function that the mode sees, runs.
    """
    with AsOnGpu(device=torch.cuda.current_device()):
        return _run_backward(*args, **kwargs)


class AsOnCpu(TorchFunctionMode):
    """Leaves out first values of weights; everything else is done as asked."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Skip initialization."""
        if _is_initializer(func):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _is_initializer(func: Any) -> bool:
    return getattr(func, "__module__", "") == "torch.nn.init"
