"""Collectives without a reduction: broadcast, all-gather, gather, scatter, all-to-all."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from weft.errors import UsageError
from weft.torch.backend.c10d import ALL_GATHER, ALL_TO_ALL, BROADCAST, GATHER, SCATTER, Work
from weft.torch.backend.contiguity import (
    IssuedCollective,
    concatenated,
    contiguous_input,
    contiguous_output,
    copy_overlapping,
    output_buffer,
    output_buffers,
    overlaps,
    require_same,
    single,
)
from weft.torch.backend.device_groups import by_device
from weft.torch.backend.group_base import GroupBase


class MovementCollectives(GroupBase):
    """Methods of c10d's ProcessGroup; torch documents their meaning."""

    @by_device
    def broadcast(self, tensors: list[Tensor], opts: Any = BROADCAST) -> Work:
        """Broadcast the root's tensor."""
        x = single(tensors)
        encoding = None if self.compression is None else self.compression.encoding_of(x)
        buffer, finish = contiguous_output(x, keep=True)
        handle = self.channel.broadcast(buffer, opts.rootRank, encoding, async_op=opts.asyncOp)
        return self.work(tensors, handle, finish)

    @by_device
    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = ALL_GATHER
    ) -> Work:
        """All-gather into a list of tensors."""
        outs = single(outputs)
        return self.work(outs, *self._allgather(outs, single(inputs), opts))

    @by_device
    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = ALL_GATHER
    ) -> Work:
        """All-gather several tensors; ``outputs`` has a list for each rank."""
        calls = [self._allgather(outs, x, opts) for *outs, x in zip(*outputs, inputs, strict=True)]
        return self.works([out for outs in outputs for out in outs], calls)

    @by_device
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = ALL_GATHER) -> Work:  # noqa: A002
        """All-gather into one tensor."""
        return self.work([output], *self._all_gather_single(output, input, opts))

    _allgather_base = all_gather_single

    @by_device
    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = ALL_GATHER
    ) -> Work:
        """All-gather several tensors."""
        calls = [
            self._all_gather_single(out, x, opts) for out, x in zip(outputs, inputs, strict=True)
        ]
        return self.works(outputs, calls)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @by_device
    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = GATHER) -> Work:
        """Gather all ranks' tensors on the root."""
        x, root = contiguous_input(single(inputs)), opts.rootRank
        if self.rank() != root:
            handle = self.channel.gather(None, x, root, async_op=opts.asyncOp)
            return self.work([], handle, keep=x)
        outs = single(outputs)
        self._require_equal(outs, x, "gather")
        buffer, finish = output_buffer(outs)
        handle = self.channel.gather(buffer, x, root, async_op=opts.asyncOp)
        return self.work(outs, handle, finish, x)

    @by_device
    def scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = SCATTER
    ) -> Work:
        """Scatter the root's tensors."""
        buffer, finish = contiguous_output(single(outputs))
        whole = None
        if self.rank() == opts.rootRank:
            self._require_equal(single(inputs), buffer, "scatter")
            whole = concatenated(single(inputs))
        handle = self.channel.scatter(buffer, whole, opts.rootRank, async_op=opts.asyncOp)
        return self.work(outputs, handle, finish, whole)

    @by_device
    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = ALL_TO_ALL) -> Work:
        """Send each rank one of the tensors."""
        require_same([*outputs, *inputs], 2 * self.size(), "all_to_all")
        buffers, finish = output_buffers(outputs)
        parts = copy_overlapping([contiguous_input(x) for x in inputs], buffers)
        handle = self.channel.exchange(buffers, parts, async_op=opts.asyncOp)
        return self.work(outputs, handle, finish, parts)

    @by_device
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002 - torch names it
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = ALL_TO_ALL,
    ) -> Work:
        """Send each rank some rows; without splits all get the same number."""
        require_same([output, input], 2, "all_to_all")
        buffer, finish = contiguous_output(output)
        splits = None
        if output_splits or input_splits:
            splits = self._elements(output, output_splits), self._elements(input, input_splits)
        else:
            self._require_even(output)
        x = contiguous_input(input)
        # Other ranks read the input while this one writes its output.
        x = x.clone() if overlaps(x, buffer) else x
        handle = self.channel.all_to_all(buffer, x, splits, async_op=opts.asyncOp)
        return self.work([output], handle, finish, x)

    alltoall_base = all_to_all_single

    def _allgather(self, outputs: list[Tensor], x: Tensor, opts: Any) -> IssuedCollective:
        require_same([*outputs, x], self.size() + 1, "all_gather")
        mine = outputs[self.rank()]
        if mine.numel() != x.numel():
            raise UsageError(
                f"all_gather: output has {mine.numel()} elements, expected {x.numel()}."
            )
        buffers, finish = output_buffers(outputs)
        whole = contiguous_input(x)
        if any(
            overlaps(whole, buffer, 0 if rank == self.rank() else None)
            for rank, buffer in enumerate(buffers)
        ):
            whole = whole.clone()
        handle = self.channel.all_gather_list(buffers, whole, async_op=opts.asyncOp)
        return IssuedCollective(handle, finish, whole)

    def _all_gather_single(self, output: Tensor, x: Tensor, opts: Any) -> IssuedCollective:
        require_same([output, x], 2, "all_gather")
        if output.numel() != x.numel() * self.size():
            raise UsageError(
                f"all_gather: output has {output.numel()} elements, expected "
                f"{x.numel()}*{self.size()} = {x.numel() * self.size()}."
            )
        buffer, finish = contiguous_output(output)
        whole = contiguous_input(x)
        # In place as in NCCL: the input may be this rank's part of the output, and nothing else of
        # it.
        if overlaps(whole, buffer, in_place=self.rank() * x.nbytes):
            whole = whole.clone()
        return IssuedCollective(
            self.channel.all_gather(buffer, whole, async_op=opts.asyncOp), finish, whole
        )

    def _require_equal(self, tensors: list[Tensor], one: Tensor, what: str) -> None:
        require_same([*tensors, one], self.size() + 1, what)
        for rank, tensor in enumerate(tensors):
            if tensor.numel() != one.numel():
                raise UsageError(
                    f"{what}: the tensor of rank {rank} has {tensor.numel()} elements, expected "
                    f"{one.numel()}."
                )

    def _elements(self, tensor: Tensor, splits: Sequence[int]) -> list[int]:
        """Convert splits from rows to elements."""
        # c10d counts splits in rows of the first dimension, the channel in elements.
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            self._require_even(tensor)
            return [tensor.numel() // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != rows:
            raise UsageError(
                f"all_to_all: expected {self.size()} splits with a sum of {rows} rows (got "
                f"{list(splits)})."
            )
        width = tensor.numel() // rows if rows else 0
        return [split * width for split in splits]

    def _require_even(self, tensor: Tensor) -> None:
        if tensor.dim() and tensor.shape[0] % self.size():
            raise UsageError(
                f"all_to_all: {tensor.shape[0]} rows are not divisible by {self.size()} ranks."
            )
