"""torch's parallel wrappers (DDP, FSDP, pipelines, DeviceMesh) on fake tensors.

Each works on a captured step as on a GPU, but for what needs values of tensors or answers of
other ranks: that is patched here, one function a wrapper.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import _flat_param
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining import stage as stage_module
from torch.distributed.tensor import DTensor, _collective_utils, _redistribute
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import DistributedDataParallel

from weft.errors import CaptureError

if TYPE_CHECKING:
    from weft.torch.capture.recorder import Recorder

_C10D: Any = dist  # what they have beyond what their types say
_STAGES: Any = stage_module
Patch = contextlib.AbstractContextManager[Any]


def wrapper_patches(recorder: Recorder, *, as_gpu: bool) -> list[Patch]:
    """Return the patches of the wrappers for one captured rank."""
    return [
        *_mesh_patches(recorder, as_gpu=as_gpu),
        mock.patch.object(funcol, "_maybe_wrap_tensor", _waits_when_used),
        *_ddp_patches(recorder),
        *_fsdp_patches(recorder, as_gpu=as_gpu),
        *_pipeline_patches(recorder),
        *_module_patches(recorder),
        *_compile_patches(recorder),
    ]


def forget_meshes() -> None:
    """Empty the caches of DTensor: they find a mesh of an earlier rank equal to one of this rank's.

    Equal meshes have process groups of different names.
    """
    propagator: Any = DTensor._op_dispatcher.sharding_propagator  # noqa: SLF001
    propagator.propagate_op_sharding.cache_clear()
    for module, name in (
        (torch._C, "_clear_DTensor_sharding_propagator_cache"),  # noqa: SLF001
        (_redistribute, "clear_redistribute_planner_cache"),
    ):
        getattr(module, name, lambda: None)()
    _redistribute._gen_transform_infos.cache_clear()  # noqa: SLF001
    _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()


def _waits_when_used(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a functional collective returns in eager mode; torch waits on fake tensors."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _WaitsWhenUsed.apply(tensor)  # type: ignore[no-any-return, no-untyped-call]
    return funcol.AsyncCollectiveTensor(tensor)


class _WaitsWhenUsed(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return funcol.AsyncCollectiveTensor(tensor.detach())

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _shard_dim_alltoall(
    tensor: torch.Tensor, gather_dim: int, shard_dim: int, mesh: DeviceMesh, mesh_dim: int
) -> torch.Tensor:
    """Exchange shards as on a GPU; on a CPU mesh, DTensor gathers all of them."""
    chunks = torch.stack(tensor.chunk(mesh.size(mesh_dim), shard_dim))
    received = torch.empty_like(chunks)
    dist.all_to_all_single(received, chunks, group=mesh.get_group(mesh_dim))
    return torch.cat(received.unbind(), gather_dim)


def _mesh_patches(recorder: Recorder, *, as_gpu: bool) -> list[Patch]:
    exchange = "torch.distributed.tensor.placement_types.shard_dim_alltoall"
    learn = "_propagate_tensor_meta_non_cached"
    original = getattr(ShardingPropagator, learn)

    def learnt(*args: Any, **kwargs: Any) -> Any:
        with recorder.aside():  # DTensor carries ops out on whole shapes to learn of results
            return original(*args, **kwargs)

    return [
        *(
            mock.patch.object(DeviceMesh, name, _with_real_numbers(getattr(DeviceMesh, name)))
            for name in ("__init__", "__getitem__", "_flatten")
        ),
        mock.patch.object(ShardingPropagator, learn, learnt),
        *([mock.patch(exchange, _shard_dim_alltoall)] if as_gpu else []),
    ]


def _with_real_numbers(method: Callable[..., Any]) -> Callable[..., Any]:
    """Run a method of a mesh on real tensors of ranks: it asks for their values."""

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


# --- DistributedDataParallel ---------------------------------------------------------------


def _ddp_patches(recorder: Recorder) -> list[Patch]:
    ddp: Any = DistributedDataParallel
    init, forward = ddp.__init__, ddp.forward

    @functools.wraps(init)
    def without_devices(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        kwargs |= dict.fromkeys(("device_ids", "output_device"))  # as with CPU modules
        init(self, module, *args[2:], **kwargs)

    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce buckets from Python: the reducer cannot read what a fake group answers."""
        if not self._comm_hooks:
            self.register_comm_hook(self.process_group, average)
        return forward(self, *args, **kwargs)

    def average(group: Any, bucket: Any) -> Any:
        """Sum a bucket, as the reducer without a hook does: it divides while it copies into one."""
        work: Any = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    # DDP looks at annotations themselves, not at their text.
    average.__annotations__ = {
        "bucket": _C10D.GradBucket,
        "return": torch.futures.Future[torch.Tensor],
    }

    def builtin(self: Any, kind: Any) -> None:
        """Register the hook of the same name that is written in Python."""
        compress = kind == _C10D.BuiltinCommHookType.FP16_COMPRESS
        hook = default_hooks.fp16_compress_hook if compress else default_hooks.allreduce_hook
        self.register_comm_hook(self.process_group, hook)

    def no_answer(*_args: Any, **_kwargs: Any) -> None:
        return None

    def with_buckets(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder.makes_maps = True  # find_unused_parameters: the first one is the host's
        try:
            _with_buckets(self, *args, **kwargs)
        finally:
            recorder.makes_maps = False

    return [
        mock.patch("torch.nn.parallel.distributed._verify_param_shape_across_processes", no_answer),
        mock.patch("torch.nn.parallel.distributed._sync_module_states", no_answer),
        mock.patch.object(ddp, "_passing_sync_batchnorm_handle", no_answer),
        mock.patch.object(nn.SyncBatchNorm, "forward", _synchronized_norm),
        mock.patch.object(ddp, "__init__", without_devices),
        mock.patch.object(ddp, "forward", hooked),
        mock.patch.object(ddp, "_ddp_init_helper", with_buckets),
        mock.patch.object(ddp, "_register_builtin_comm_hook", builtin),
    ]


def _synchronized_norm(layer: nn.SyncBatchNorm, x: torch.Tensor) -> torch.Tensor:
    """Normalize by what a batch norm runs, and exchange statistics: its kernels are CUDA's."""
    group: Any = layer.process_group or dist.group.WORLD
    running = (layer.running_mean, layer.running_var)
    means, variances = running if not layer.training or layer.track_running_stats else (None, None)
    train = layer.training or layer.running_mean is None
    momentum = layer.momentum or 0.0
    norm = nn.functional.batch_norm
    y = norm(x, means, variances, layer.weight, layer.bias, train, momentum, layer.eps)
    if not layer.training or dist.get_world_size(group) == 1:
        return y
    return _ExchangedStatistics.apply(y, group)  # type: ignore[no-any-return, no-untyped-call]


class _ExchangedStatistics(torch.autograd.Function):
    """Gathers means, variances and counts in the forward pass, and sums two gradients of them."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group, ctx.channels = group, y.shape[1]
        own = y.new_empty(2 * y.shape[1] + 1, dtype=torch.float32)
        everyone = own.new_empty(dist.get_world_size(group) * own.numel())
        dist.all_gather_into_tensor(everyone, own, group)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        sums = gradient.new_empty(2 * ctx.channels, dtype=torch.float32)
        dist.all_reduce(sums, group=ctx.group)
        return gradient, None


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


# --- FSDP ------------------------------------------------------------------------------------


def _fsdp_patches(recorder: Recorder, *, as_gpu: bool) -> list[Patch]:
    resize = torch.UntypedStorage.resize_

    def resized(storage: Any, nbytes: int) -> Any:
        recorder.memory.resized(storage._cdata, nbytes)  # noqa: SLF001 - its address
        return resize(storage, nbytes)

    def refuse_offload(*_args: Any, **_kwargs: Any) -> None:
        raise CaptureError(
            "CPU offload cannot be captured: copies between host and device would not be seen",
            "Capture the step without offload_policy or cpu_offload.",
        )

    def maybe_offload(self: Any, offload_params: bool = False) -> None:  # noqa: FBT001, FBT002
        if offload_params:
            refuse_offload()
        self.offload_params = False

    handle = "torch.distributed.fsdp.fully_sharded_data_parallel._init_device_handle"
    init_handle: Any = pkgutil.resolve_name(handle)

    def with_handle(state: Any, module: Any, ignored: Any, device_id: Any) -> Any:
        """Use the device of the capture if none is given."""
        given = device_id if device_id is not None else torch.device("cpu")
        return init_handle(state, module, ignored, given)

    after_forward = "torch.distributed.fsdp._fully_shard._fully_shard._get_post_forward_mesh_info"
    mesh_info: Any = pkgutil.resolve_name(after_forward)

    def with_real_mesh(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():  # ranks of a mesh are real numbers
            return mesh_info(*args, **kwargs)

    patches: list[Patch] = [
        mock.patch.object(torch.UntypedStorage, "resize_", resized),
        mock.patch("torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty", _Chunks),
        mock.patch(handle, with_handle),
        mock.patch(after_forward, with_real_mesh),
        mock.patch.object(_flat_param.FlatParamHandle, "_check_on_compute_device", _unchecked),
        mock.patch.object(_flat_param.FlatParamHandle, "_writeback_orig_params", _unchecked),
    ]
    if as_gpu:
        patches += [
            mock.patch.object(dist.fsdp.CPUOffloadPolicy, "__init__", refuse_offload),
            mock.patch.object(dist.fsdp.CPUOffload, "__init__", maybe_offload),
        ]
    return patches


def _unchecked(*_args: Any, **_kwargs: Any) -> bool:
    """Return False: FSDP1 looks at devices and data pointers, which fake tensors do not have."""
    return False


class _Chunks:
    """A tensor in chunks, made when asked for: of the chunks for a thousand ranks one is used."""

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


# --- pipelines -------------------------------------------------------------------------------


def _pipeline_patches(recorder: Recorder) -> list[Patch]:
    """Exchange shapes before the step, not in it; ranks are captured one after another."""
    schedule, stage = schedules._PipelineSchedule, _STAGES.PipelineStage  # noqa: SLF001
    if not hasattr(stage, "_warmup_forward_vote"):  # before torch 2.13
        return []
    initialize, receive = schedule._initialize_pp_stages, stage._recv_meta  # noqa: SLF001

    def initialized(self: Any, *args: Any, **kwargs: Any) -> Any:
        with recorder.aside(memory=True):
            return initialize(self, *args, **kwargs)

    def vote(self: Any, has_backward: bool, *_: Any, **__: Any) -> torch.Tensor:  # noqa: FBT001
        dynamic = _STAGES.InferenceMode.needs_dynamic(self._user_meta, has_backward)
        return torch.tensor([0 if dynamic else 1], dtype=torch.int32)

    def result(self: Any, received_result: Any = None) -> torch.Tensor:
        return vote(self, True) if received_result is None else received_result

    def received(self: Any, source: int) -> Any:
        """Return gradients with the shapes of their tensors: they are sent later."""
        if source < self.stage_index:
            return receive(self, source)
        outputs = self._stage_meta.outputs
        metas = _STAGES._derive_grad_metas(outputs)  # noqa: SLF001
        return _STAGES._StageBackwardMeta(backward_metas=metas)  # noqa: SLF001

    return [
        mock.patch.object(schedule, "_initialize_pp_stages", initialized),
        mock.patch.object(stage, "_warmup_forward_vote", vote),
        mock.patch.object(stage, "_warmup_backward_result", result),
        mock.patch.object(stage, "_recv_meta", received),
    ]


# --- modules and torch.compile -----------------------------------------------------------------


def _zeroed(recorder: Recorder, zero_grad: Callable[..., None]) -> Callable[..., None]:
    """Record where gradients are kept from one step to the next."""

    @functools.wraps(zero_grad)
    def zeroed(self: Any, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - as torch has it
        recorder.memory.keeps_gradients |= not set_to_none
        zero_grad(self, set_to_none)

    return zeroed


def _module_patches(recorder: Recorder) -> list[Patch]:
    zeroing: Any = torch.optim.Optimizer, nn.Module
    names = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    return [
        mock.patch.object(nn.Module, "_apply", _apply),
        *(
            mock.patch.object(each, "zero_grad", _zeroed(recorder, each.zero_grad))
            for each in zeroing
        ),
        *(mock.patch.object(nn.init, name, _unchanged) for name in names),
    ]


def _unchanged(tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    """Return weights unchanged: initializers may loop until values are within bounds."""
    return tensor


def _apply(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002 - as nn.Module has it
    """Convert parameters in place where types allow: torch refuses to swap fake ones."""
    if recurse:
        for child in module.children():
            child._apply(fn)  # type: ignore[no-untyped-call]  # noqa: SLF001
    for tensors in (module._parameters, module._buffers):  # noqa: SLF001
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            with torch.no_grad():
                applied = fn(tensor)
            if applied is tensor:
                continue
            if torch._has_compatible_shallow_copy_type(tensor, applied):  # noqa: SLF001
                tensor.data = applied
            elif isinstance(tensor, nn.Parameter):
                tensors[name] = nn.Parameter(applied, tensor.requires_grad)
            else:
                tensors[name] = applied
    return module


def _compile_patches(recorder: Recorder) -> list[Patch]:
    """Record compiled code as the ops it is made of, and count what was compiled."""

    def compiled(model: Any = None, **_options: Any) -> Any:
        recorder.compiled += 1
        if isinstance(model, nn.Module):
            object.__setattr__(model, "_orig_mod", model)  # and no submodule of itself
        return model if model is not None else compiled

    return [
        mock.patch.object(torch, "compile", compiled),
        torch.compiler.set_stance("force_eager"),  # for what was compiled before
    ]
