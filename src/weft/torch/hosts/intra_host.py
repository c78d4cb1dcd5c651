"""Collectives inside one host, and reductions of local memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from weft._core import reduce_into, reduction_item_bytes
from weft.errors import DisagreeError, RunError
from weft.runtime import World
from weft.torch.backend.channel import Channel, memory_of
from weft.torch.hosts.chunks import as_bytes


class IntraHost:
    """The collectives of a host's ranks; a single rank needs no communication."""

    def __init__(self, world: World) -> None:
        self._channel = Channel(world)
        self.world = world
        self.alone = world.num_ranks == 1

    def broadcast(self, x: Tensor, local_root: int) -> None:
        """Broadcast the tensor of a local rank."""
        if not self.alone:
            self._channel.broadcast(x, local_root, async_op=False)

    def broadcast_any_length(self, x: Tensor, local_root: int) -> None:
        """Broadcast the tensor of a local rank, of any length that all know."""
        if self.alone:
            return
        world = self._channel.world
        nothing = x[:0]
        gives = world.rank == local_root
        outs = [
            x if rank == local_root and not gives else nothing for rank in range(world.num_ranks)
        ]
        xs = [x if rank != local_root and gives else nothing for rank in range(world.num_ranks)]
        self._channel.exchange(outs, xs, async_op=False)

    def gather(self, out: Tensor | None, x: Tensor, local_root: int) -> None:
        """Gather the ranks' inputs on a local rank."""
        if not self.alone:
            self._channel.gather(out, x, local_root, async_op=False)
        elif out is not None:
            out.copy_(x)

    def scatter(self, out: Tensor, x: Tensor | None, local_root: int) -> None:
        """Scatter the tensor of a local rank."""
        if not self.alone:
            self._channel.scatter(out, x, local_root, async_op=False)
        elif x is not None:
            out.copy_(x)

    def exchange(self, outs: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
        """Send each rank a tensor and receive one from each."""
        if self.alone:
            _copy(outs[0], xs[0])
        else:
            self._channel.exchange(outs, xs, async_op=False)


def _copy(out: Tensor, x: Tensor) -> None:
    if out.nbytes != x.nbytes:
        raise DisagreeError(f"a rank sends {x.nbytes} bytes to itself and receives {out.nbytes}")
    as_bytes(out).copy_(as_bytes(x))


def require_reduction(op: str, x: Tensor) -> None:
    """Raise if an operation does not support the dtype."""
    try:
        reduction_item_bytes(memory_of(x).dtype, op)
    except ValueError as error:
        raise RunError(f"op: {error}.") from error


def reduce_local(out: Tensor, xs: Sequence[Tensor], op: str) -> None:
    """Reduce tensors of this process in their order."""
    buffer = memory_of(out)
    reduce_into(buffer.address, [x.data_ptr() for x in xs], buffer.nbytes, buffer.dtype, op)


def divide_by(x: Tensor, number: int) -> None:
    """Divide a sum in place; integers are rounded towards zero."""
    if not (x.is_floating_point() or x.is_complex()):
        x.copy_(torch.div(x, number, rounding_mode="trunc"))
    elif x.element_size() == 1:  # torch cannot divide 8-bit floats
        x.copy_(x.float() / number)
    else:
        x.div_(number)
