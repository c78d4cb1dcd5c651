"""FSDP2 with its buffers in the symmetric heap: other ranks read them where they lie."""

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
    """Let every FSDP2 module in ``model`` gather and scatter through the heap of its group.

    Call it after ``fully_shard``, on every rank. Gives the buffers, one for each group of
    ranks: they count what went through them. Where /dev/shm has no more room, ordinary memory
    is taken, which is slower and gives the same numbers.
    """
    found: dict[ProcessGroup, HeapBuffers] = {}
    for module in model.modules():
        group = _group_of(module)
        if group is not None:
            buffers = found.setdefault(group, HeapBuffers(group))
            _require(module, "set_custom_all_gather")(HeapAllGather(buffers))
            _require(module, "set_custom_reduce_scatter")(HeapReduceScatter(buffers))
    if not found:
        raise UsageError("there is no FSDP2 module in this model.", "Call fully_shard first.")
    return list(found.values())


class HeapBuffers:
    """Memory of this rank in the heap, kept for the next buffer of its size.

    No rank waits for another here: when a tensor dies, its memory is free, on each rank in
    its own time.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._private_arena = world_of(group).private_arena
        self._free: defaultdict[int, list[Allocation]] = defaultdict(list)
        self.num_given = 0  # tensors in the heap
        self.num_refused = 0  # tensors for which there was no room
        self.num_calls = 0  # collectives whose memory all lay in the heap

    def tensor(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Give an empty tensor."""
        nbytes = math.prod(size) * dtype.itemsize
        lent = self._take(max(round_up(nbytes, PAGE), PAGE))
        if lent is None:
            return torch.empty(*size, dtype=dtype)
        view = lent.bytes[:nbytes]  # an object of its own: the tensor holds it as long as it lives
        weakref.finalize(view, self._free[lent.bytes.size].append, lent)
        return torch.from_numpy(view).view(dtype).view(*size)

    def note(self, *tensors: Tensor) -> None:
        """Count a call if its tensors lie in the heap."""
        self.num_calls += all(
            self._private_arena.is_shared(tensor.data_ptr()) for tensor in tensors
        )

    def _take(self, nbytes: int) -> Allocation | None:
        free = self._free[nbytes]
        try:
            lent = free.pop()
        except IndexError:  # another thread may have taken the last one
            lent = None
        try:
            lent = lent or self._private_arena.allocate(nbytes)
        except OSError:
            self.num_refused += 1
            return None
        self.num_given += 1
        return lent


class _Allocates:
    """What FSDP2 asks of a communication: memory. CUDA tensors take their own."""

    def __init__(self, buffers: HeapBuffers) -> None:
        self._buffers = buffers

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Give the memory of a buffer."""
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
    """Give the ranks among which an FSDP2 module shards: the last dimension of its mesh."""
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
            f"torch {torch.__version__} has no FSDPModule.{name}.", "Use torch 2.8 or later."
        )
    return setter
