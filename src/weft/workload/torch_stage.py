"""The stage on which a step is captured: fake tensors, a fake process group, no GPU.

Tensors have shapes and no bytes; they stand on the CPU, because autograd needs a device that
exists. What a GPU would do otherwise than a CPU is put right here: optimizers that work on lists
of tensors, normalisation in one kernel, autocast.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # fake tensors need it; here it is loaded before anything is patched
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from weft.errors import UsageError

_C10D: Any = dist  # what it has beyond what its types say
Resized = Callable[[int, int], None]
Aside = Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def stage(
    rank: int, world_size: int, resized: Resized, aside: Aside, *, as_gpu: bool = True
) -> Iterator[None]:
    """Let everything inside run on fake tensors, as ``rank`` of ``world_size``.

    ``resized`` hears of storages that are resized in place, by their address; what runs inside
    ``aside`` is no part of the step: DTensor carries ops out on whole shapes to learn of results.
    """
    if dist.is_initialized():
        raise UsageError(
            "a process group is at work already; a step is captured in a world of its own",
            "Call dist.destroy_process_group() first, or leave the group to the capture.",
        )
    fake = FakeTensorMode()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    collecting = gc.isenabled()
    gc.disable()  # graphs of autograd are large and no garbage: looking through them takes half
    try:
        with contextlib.ExitStack() as stack:
            own = _gpu_patches() if as_gpu else [mock.patch(f"{__name__}._scaled", _nothing)]
            for patch in (*_patches(resized, aside), *own):
                stack.enter_context(patch)
            stack.enter_context(fake)
            stack.enter_context(_AsOnGpu() if as_gpu else _AsOnCpu())
            yield
    finally:
        if collecting:
            gc.enable()
        dist.destroy_process_group()


def _patches(resized: Resized, aside: Aside) -> list[contextlib.AbstractContextManager[Any]]:
    mesh = [
        mock.patch.object(DeviceMesh, name, _with_real_numbers(getattr(DeviceMesh, name)))
        for name in ("__init__", "__getitem__", "_flatten")
    ]
    resize = torch.UntypedStorage.resize_

    def told(storage: Any, nbytes: int) -> Any:
        resized(storage._cdata, nbytes)  # noqa: SLF001 - its address
        return resize(storage, nbytes)

    learn = "_propagate_tensor_meta_non_cached"
    original = getattr(ShardingPropagator, learn)

    def learnt(*args: Any, **kwargs: Any) -> Any:
        with aside():
            return original(*args, **kwargs)

    return [
        *mesh,
        mock.patch.object(torch.UntypedStorage, "resize_", told),
        mock.patch.object(ShardingPropagator, learn, learnt),
        mock.patch.object(dist, "init_process_group", _nothing),
        mock.patch("torch.nn.parallel.distributed._verify_param_shape_across_processes", _nothing),
        mock.patch("torch.nn.parallel.distributed._sync_module_states", _nothing),
        mock.patch.object(nn.Module, "_apply", _apply),
        mock.patch.object(DistributedDataParallel, "forward", _hooked),
        mock.patch.object(DistributedDataParallel, "_ddp_init_helper", _with_buckets),
        mock.patch("torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty", _Chunks),
        *(mock.patch.object(torch.cuda, name, _nothing) for name in ("set_device", "synchronize")),
    ]


def _gpu_patches() -> list[contextlib.AbstractContextManager[Any]]:
    """What only a GPU does: it has kernels for lists of tensors, and its own autocast."""
    foreach = "_get_foreach_kernels_supported_devices"
    return [
        mock.patch.object(torch.autocast, "__init__", _on_cpu(torch.autocast.__init__)),
        mock.patch(f"torch.utils._foreach_utils.{foreach}", _every_device),
        mock.patch(f"torch.optim.optimizer.{foreach}", _every_device),
    ]


_forward: Any = DistributedDataParallel.forward


def _hooked(ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
    """Reduce buckets from Python: the reducer cannot read what a fake group answers."""
    if not ddp._comm_hooks:  # noqa: SLF001
        ddp.register_comm_hook(ddp.process_group, _average)
    return _forward(ddp, *args, **kwargs)


_init_helper: Any = DistributedDataParallel._ddp_init_helper  # noqa: SLF001


def _with_buckets(ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
    """Make the buckets that DDP has from its second step on: in the order gradients are ready."""
    assign = _C10D._compute_bucket_assignment_by_size  # noqa: SLF001

    def ready(tensors: Any, limits: Any, sparse: Any, *rest: Any) -> Any:
        if len(limits) > 1:
            return assign(tensors, limits, sparse, *rest)
        first = min(_C10D._DEFAULT_FIRST_BUCKET_BYTES, ddp.bucket_bytes_cap)  # noqa: SLF001
        backwards = tensors[::-1], [first, ddp.bucket_bytes_cap], sparse[::-1]
        buckets, caps = assign(*backwards, *rest)
        last = len(tensors) - 1
        named = [[last - place for place in bucket] for bucket in buckets]
        return named[::-1], caps[::-1]

    with mock.patch.object(dist, "_compute_bucket_assignment_by_size", ready):
        _init_helper(ddp, *args, **kwargs)


def _scaled(buffer: torch.Tensor, group: Any) -> None:
    """Divide the sum; on a CPU the copy into the bucket does it."""
    buffer.div_(dist.get_world_size(group))


def _average(group: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Do as the reducer does when it has no hook."""
    buffer = bucket.buffer()
    _scaled(buffer, group)
    dist.all_reduce(buffer, group=group)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


# DDP looks at annotations themselves, not at their text.
_average.__annotations__ = {
    "bucket": _C10D.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}


class _Chunks:
    """A tensor in chunks, made when they are asked for: of a thousand ranks a rank needs one."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._num, self._dim = tensor, num_chunks, dim

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, place: int) -> torch.Tensor:
        length = self._tensor.shape[self._dim]
        each = -(-length // self._num)
        start = place * each
        if start >= length:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(each, length - start))


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _every_device() -> list[str]:
    return ["cpu", "cuda"]


def _on_cpu(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def wrapped(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        method(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return wrapped


def _with_real_numbers(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a mesh work on real numbers of ranks: it asks for their values."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            if isinstance(kwargs.get("_rank_map"), FakeTensor):  # init_device_mesh counts them up
                count = kwargs["_rank_map"].numel()
                kwargs["_rank_map"] = torch.arange(count, dtype=torch.int)
            args = tuple("cpu" if value == "cuda" else value for value in args)
            if kwargs.get("device_type") == "cuda":
                kwargs["device_type"] = "cpu"
            return method(self, *args, **kwargs)

    return wrapped


def _apply(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002 - as nn.Module has it
    """Convert parameters in place: torch refuses to swap fake ones."""
    if recurse:
        for child in module.children():
            _apply(child, fn)
    for tensors in (module._parameters, module._buffers):  # noqa: SLF001
        for tensor in filter(lambda each: each is not None, tensors.values()):
            with torch.no_grad():
                applied = fn(tensor)
            if applied is not tensor:
                tensor.data = applied  # type: ignore[union-attr]
    return module


class _AsOnGpu(TorchFunctionMode):
    """What is asked of a GPU is done on the CPU, as the GPU would."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Redirect one function."""
        kwargs = kwargs or {}
        if func in (torch.rms_norm, nn.functional.rms_norm):
            return _rms_norm(*args, **kwargs)
        if func is torch.Tensor.cuda or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if any(_is_gpu(value) for value in args):
            args = tuple(_CPU if _is_gpu(value) else value for value in args)
        if _is_gpu(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        return func(*args, **kwargs)


class _AsOnCpu(TorchFunctionMode):
    """What is asked of a CPU is done as it is; only first values of weights are left out."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Leave initialisation out."""
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


_CPU = torch.device("cpu")


def _is_gpu(value: Any) -> bool:
    if isinstance(value, str):
        return value.partition(":")[0] == "cuda"
    return isinstance(value, torch.device) and value.type == "cuda"


def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """On a GPU it is one kernel that moves what a layer norm moves; on a CPU it would be six."""
    return nn.functional.layer_norm(x, shape, weight, None, eps or 1e-6)
