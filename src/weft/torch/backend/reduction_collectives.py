"""Collectives with a reduction: all-reduce, reduce, reduce-scatter; and the barrier."""

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
    IssuedCollective,
    concatenated,
    contiguous_input,
    contiguous_output,
    copy_to,
    overlaps,
    require_same,
    single,
)
from weft.torch.backend.device_groups import by_device
from weft.torch.backend.group_base import GroupBase
from weft.torch.backend.reduce_ops import reduce_op_name
from weft.torch.backend.sparse_all_reduce import sparse_all_reduce


class ReductionCollectives(GroupBase):
    """Methods of c10d's ProcessGroup; torch documents their meaning."""

    @by_device
    def allreduce(self, tensors: list[Tensor], opts: Any = ALL_REDUCE) -> Work:
        """Reduce in place, on every rank; sparse tensors before the call returns."""
        if single(tensors).layout is torch.sparse_coo:
            op = reduce_op_name(opts.reduceOp)
            sparse_all_reduce(self.channel, tensors[0], op, self.size())
            return self._pending([], tensors, None, None)
        return self.work(tensors, *self._allreduce(single(tensors), opts))

    @by_device
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = ALL_REDUCE_COALESCED) -> Work:
        """Reduce several tensors in place."""
        return self.works(tensors, [self._allreduce(tensor, opts) for tensor in tensors])

    @by_device
    def reduce(self, tensors: list[Tensor], opts: Any = REDUCE) -> Work:
        """Reduce in place, on the root."""
        buffer, finish = contiguous_output(single(tensors), keep=True)
        op = reduce_op_name(opts.reduceOp)
        handle = self.channel.reduce(buffer, opts.rootRank, op, async_op=opts.asyncOp)
        return self.work(tensors, handle, finish)

    @by_device
    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = REDUCE_SCATTER
    ) -> Work:
        """Reduce-scatter a list of tensors."""
        output, parts = single(outputs), single(inputs)
        require_same([*parts, output], self.size() + 1, "reduce_scatter")
        if any(part.numel() != output.numel() for part in parts):
            return self.works(outputs, self._reduce_scatter_uneven(output, parts, opts))
        return self.work(outputs, *self._reduce_scatter(output, concatenated(parts), opts))

    @by_device
    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002 - torch names it
        opts: Any = REDUCE_SCATTER,
    ) -> Work:
        """Reduce-scatter a tensor."""
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
        """Wait for every rank; with another device, by the group of that device."""
        if opts.device is not None and opts.device.type != "cpu":
            work: Work = self.device_group(opts.device.type).barrier(opts)
            return work
        return self.work([], self.channel.barrier(async_op=opts.asyncOp))

    def _allreduce(self, tensor: Tensor, opts: Any) -> IssuedCollective:
        buffer, finish = contiguous_output(tensor, keep=True)
        op = reduce_op_name(opts.reduceOp)
        return IssuedCollective(self.channel.all_reduce(buffer, op, async_op=opts.asyncOp), finish)

    def _reduce_scatter(self, output: Tensor, x: Tensor, opts: Any) -> IssuedCollective:
        require_same([output, x], 2, "reduce_scatter")
        if x.numel() != output.numel() * self.size():
            raise UsageError(
                f"reduce_scatter: output has {output.numel()} elements, expected "
                f"{x.numel()}/{self.size()} = {x.numel() / self.size():g}."
            )
        buffer, finish = contiguous_output(output)
        op = reduce_op_name(opts.reduceOp)
        whole = contiguous_input(x)
        if overlaps(whole, buffer, in_place=-self.rank() * buffer.nbytes):
            whole = whole.clone()
        handle = self.channel.reduce_scatter(buffer, whole, op, async_op=opts.asyncOp)
        return IssuedCollective(handle, finish, whole)

    def _reduce_scatter_uneven(
        self, output: Tensor, parts: list[Tensor], opts: Any
    ) -> list[IssuedCollective]:
        """Reduce the part of every rank to it, one by one: sizes differ."""
        op = reduce_op_name(opts.reduceOp)
        buffers = [part.clone(memory_format=torch.contiguous_format) for part in parts]
        calls = [
            IssuedCollective(
                self.channel.reduce(buffer, root, op, async_op=opts.asyncOp), keep=buffer
            )
            for root, buffer in enumerate(buffers)
        ]
        return [*calls, IssuedCollective(None, partial(copy_to, output, buffers[self.rank()]))]
