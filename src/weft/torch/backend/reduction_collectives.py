"""Collectives that join elements: all-reduce, reduce, reduce-scatter; and the barrier."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.errors import UsageError
from weft.torch.backend.c10d import (
    ALL_REDUCE,
    ALL_REDUCE_COALESCED,
    BARRIER,
    REDUCE,
    REDUCE_SCATTER,
    Work,
)
from weft.torch.backend.contiguity import (
    Call,
    carry,
    joined,
    only,
    overlap,
    readable,
    require_same,
    writable,
)
from weft.torch.backend.device_groups import by_device
from weft.torch.backend.group_base import Group
from weft.torch.backend.reduce_ops import reduction_of


class Reduces(Group):
    """Every method is one of c10d's; torch says what it means."""

    @by_device
    def allreduce(self, tensors: list[Tensor], opts: Any = ALL_REDUCE) -> Work:
        """Reduce in place, on every rank."""
        return self.work(tensors, *self._allreduce(only(tensors), opts))

    @by_device
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = ALL_REDUCE_COALESCED) -> Work:
        """Reduce several tensors in place."""
        return self.works(tensors, [self._allreduce(tensor, opts) for tensor in tensors])

    @by_device
    def reduce(self, tensors: list[Tensor], opts: Any = REDUCE) -> Work:
        """Reduce in place, on the root."""
        room, finish = writable(only(tensors), keep=True)
        op = reduction_of(opts.reduceOp)
        handle = self.channel.reduce(room, opts.rootRank, op, async_op=opts.asyncOp)
        return self.work(tensors, handle, finish)

    @by_device
    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = REDUCE_SCATTER
    ) -> Work:
        """Reduce lists of tensors, each rank the tensor of its number."""
        output, parts = only(outputs), only(inputs)
        require_same([*parts, output], self.size() + 1, "reduce_scatter")
        if any(part.numel() != output.numel() for part in parts):
            return self.works(outputs, self._reduce_scatter_uneven(output, parts, opts))
        return self.work(outputs, *self._reduce_scatter(output, joined(parts), opts))

    @by_device
    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002 - torch names it
        opts: Any = REDUCE_SCATTER,
    ) -> Work:
        """Reduce a tensor, each rank the part of its number."""
        return self.work([output], *self._reduce_scatter(output, input, opts))

    _reduce_scatter_base = reduce_scatter_single

    @by_device
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = REDUCE_SCATTER
    ) -> Work:
        """Reduce-scatter several tensors."""
        calls = [self._reduce_scatter(out, x, opts) for out, x in zip(outputs, inputs, strict=True)]
        return self.works(outputs, calls)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = BARRIER) -> Work:
        """Wait for every rank; with a device of the inner group's, until its work is done."""
        if opts.device is not None and opts.device.type != "cpu":
            work: Work = self.inner(opts.device.type).barrier(opts)
            return work
        return self.work([], self.channel.barrier(async_op=opts.asyncOp))

    def _allreduce(self, tensor: Tensor, opts: Any) -> Call:
        room, finish = writable(tensor, keep=True)
        op = reduction_of(opts.reduceOp)
        return Call(self.channel.all_reduce(room, op, async_op=opts.asyncOp), finish)

    def _reduce_scatter(self, output: Tensor, x: Tensor, opts: Any) -> Call:
        require_same([output, x], 2, "reduce_scatter")
        if x.numel() != output.numel() * self.size():
            raise UsageError(
                f"reduce_scatter: {x.numel()} elements among {self.size()} ranks for an output "
                f"of {output.numel()}."
            )
        room, finish = writable(output)
        op = reduction_of(opts.reduceOp)
        whole = readable(x)
        if overlap(whole, room, in_place=-self.rank() * room.nbytes):
            whole = whole.clone()
        handle = self.channel.reduce_scatter(room, whole, op, async_op=opts.asyncOp)
        return Call(handle, finish, whole)

    def _reduce_scatter_uneven(self, output: Tensor, parts: list[Tensor], opts: Any) -> list[Call]:
        """Reduce every rank's part to it."""
        op = reduction_of(opts.reduceOp)
        rooms = [part.clone(memory_format=torch.contiguous_format) for part in parts]
        calls = [
            Call(self.channel.reduce(room, root, op, async_op=opts.asyncOp), keep=room)
            for root, room in enumerate(rooms)
        ]
        return [*calls, Call(None, partial(carry, output, rooms[self.rank()]))]
