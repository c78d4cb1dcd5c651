"""FSDP2 with its buffers in the symmetric heap, which other ranks read without a copy."""

import math
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from weft.errors import UsageError
from weft.runtime.block_allocator import PAGE, round_up
from weft.runtime.private_arena import Allocation
from weft.torch.backend.c10d import ProcessGroup, all_gather_single, reduce_scatter_single
from weft.torch.backend.group_functions import world_of


def use_heap(model: nn.Module) -> "list[HeapBuffers]":
    """Make every FSDP2 module in ``model`` gather and scatter in the heap of its group.

    Call it after ``fully_shard``, on every rank. Returns the buffers, one for each group of ranks,
    which count their use. If /dev/shm is full, ordinary memory is used, which is slower and gives
    the same results.
    """
    found: dict[ProcessGroup, HeapBuffers] = {}
    for module in model.modules():
        group = _group_of(module)
        if group is not None:
            buffers = found.setdefault(group, HeapBuffers(group))
            _require(module, "set_custom_all_gather")(HeapAllGather(buffers))
            _require(module, "set_custom_reduce_scatter")(HeapReduceScatter(buffers))
    if not found:
        raise UsageError("model: has no FSDP2 module.", "Call fully_shard first.")
    return list(found.values())


class HeapBuffers:
    """Memory of this rank in the heap, reused for the next buffer of its size.

    No rank waits for another: the memory of a tensor is free when it is garbage collected, at a
    different time on each rank.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._private_arena = world_of(group).private_arena
        self._free: defaultdict[int, list[Allocation]] = defaultdict(list)
        self.num_given = 0  # tensors in the heap
        self.num_refused = 0  # tensors in ordinary memory, because the heap was full
        self.num_calls = 0  # collectives with all memory in the heap

    def tensor(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialized tensor."""
        nbytes = math.prod(size) * dtype.itemsize
        allocation = self._take(max(round_up(nbytes, PAGE), PAGE))
        if allocation is None:
            return torch.empty(*size, dtype=dtype)
        view = allocation.bytes[:nbytes]  # a new object, which lives as long as the tensor
        weakref.finalize(view, self._free[allocation.bytes.size].append, allocation)
        return torch.from_numpy(view).view(dtype).view(*size)

    def note(self, *tensors: Tensor) -> None:
        """Count a call if its tensors are in the heap."""
        self.num_calls += all(
            self._private_arena.is_shared(tensor.data_ptr()) for tensor in tensors
        )

    def _take(self, nbytes: int) -> Allocation | None:
        free = self._free[nbytes]
        try:
            allocation = free.pop()
        except IndexError:  # another thread may have taken the last one
            allocation = None
        try:
            allocation = allocation or self._private_arena.allocate(nbytes)
        except OSError:
            self.num_refused += 1
            return None
        self.num_given += 1
        return allocation


class _Allocates:
    """FSDP2's allocator interface. CUDA tensors use ordinary CUDA memory."""

    def __init__(self, buffers: HeapBuffers) -> None:
        self._buffers = buffers

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the memory of a buffer."""
        if device.type != "cpu":
            return torch.empty(*size, dtype=dtype, device=device)
        return self._buffers.tensor(size, dtype)


class HeapAllGather(_Allocates):
    """FSDP2's ``AllGather`` in the heap."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002 - torch calls it
    ) -> Any:
        """Gather parameters."""
        self._buffers.note(output_tensor, input_tensor)
        return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class HeapReduceScatter(_Allocates):
    """FSDP2's ``ReduceScatter`` in the heap."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002 - torch calls it
    ) -> Any:
        """Reduce gradients."""
        self._buffers.note(output_tensor, input_tensor)
        return reduce_scatter_single(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )


def _group_of(module: nn.Module) -> ProcessGroup | None:
    """Return the group of an FSDP2 module: the last dimension of its mesh."""
    if not hasattr(module, "set_requires_gradient_sync"):
        return None
    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            return mesh.get_group(mesh.ndim - 1)
    return None


def _require(module: nn.Module, name: str) -> Any:
    setter = getattr(module, name, None)
    if setter is None:
        raise UsageError(
            f"model: torch {torch.__version__} has no FSDPModule.{name}.", "Use torch 2.8 or later."
        )
    return setter
