"""What the ranks of one host do together in shared memory, and how memory is joined here."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft._core import reduce_into, reduction_item_bytes
from weft.errors import DisagreeError, RunError
from weft.runtime import World
from weft.torch.backend.channel import Channel, memory_of
from weft.torch.hosts.chunks import as_bytes


class IntraHost:
    """A host's channel. A rank that is alone on its host has nothing to do."""

    def __init__(self, world: World) -> None:
        self._channel = Channel(world)
        self.alone = world.num_ranks == 1

    def reduce(self, x: Tensor, local_root: int, op: str) -> None:
        """Reduce into the ``x`` of the rank at that place; those of the others stay."""
        if not self.alone:
            self._channel.reduce(x, local_root, op, async_op=False)
        elif op.startswith("premul:"):
            reduce_local(x, [x], op)

    def broadcast(self, x: Tensor, local_root: int) -> None:
        """Give every rank the tensor of the one at that place."""
        if not self.alone:
            self._channel.broadcast(x, local_root, async_op=False)

    def give(self, x: Tensor, local_root: int) -> None:
        """Give every rank the tensor of the one at that place; any length, known to all."""
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
        """Join the ranks' inputs at that place."""
        if not self.alone:
            self._channel.gather(out, x, local_root, async_op=False)
        elif out is not None:
            out.copy_(x)

    def scatter(self, out: Tensor, x: Tensor | None, local_root: int) -> None:
        """Give each rank its part of what lies at that place."""
        if not self.alone:
            self._channel.scatter(out, x, local_root, async_op=False)
        elif x is not None:
            out.copy_(x)

    def exchange(self, outs: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
        """Give each rank a tensor and take one of each."""
        if self.alone:
            _copy(outs[0], xs[0])
        else:
            self._channel.exchange(outs, xs, async_op=False)


def _copy(out: Tensor, x: Tensor) -> None:
    if out.nbytes != x.nbytes:
        raise DisagreeError(f"a rank gives itself {x.nbytes} bytes and takes {out.nbytes}")
    as_bytes(out).copy_(as_bytes(x))


class ReductionSteps(NamedTuple):
    """How an operation is carried out in two steps: inside the hosts, then between them."""

    intra_host: str
    inter_host: str
    averages: bool


def reduction_steps(op: str, x: Tensor) -> ReductionSteps:
    """Take an operation apart; raise where the dtype has none of that name."""
    try:
        reduction_item_bytes(memory_of(x).dtype, op)
    except ValueError as error:
        raise RunError(f"this reduction cannot be run: {error}.") from error
    if op == "avg":
        return ReductionSteps("sum", "sum", averages=True)
    return ReductionSteps(op, "sum" if op.startswith("premul:") else op, averages=False)


def reduce_local(out: Tensor, xs: Sequence[Tensor], op: str) -> None:
    """Reduce tensors of this process in their order."""
    room = memory_of(out)
    reduce_into(room.address, [x.data_ptr() for x in xs], room.nbytes, room.dtype, op)


def divide_by(x: Tensor, number: int) -> None:
    """Make a sum an average, whole numbers rounded towards zero."""
    if not (x.is_floating_point() or x.is_complex()):
        x.copy_(torch.div(x, number, rounding_mode="trunc"))
    elif x.element_size() == 1:  # torch does not divide 8-bit floats
        x.copy_(x.float() / number)
    else:
        x.div_(number)
