"""``reshard``: a tensor sharded over one mesh of ranks becomes sharded over another one."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from weft.collectives.reshard import Box, ReshardPlan, TensorSharding
from weft.errors import UsageError
from weft.runtime.prepared_schedule import PreparedSchedule, prepare
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.channel import memory_of
from weft.torch.backend.contiguity import contiguous_input, is_dense_contiguous, overlaps
from weft.torch.backend.group_functions import weft_group
from weft.torch.hosts.multi_host_channel import MultiHostChannel

Mesh = DeviceMesh | Tensor | Sequence[Any]
MeshPlacements = Sequence[Shard | Replicate]


class Resharding:
    """Moves tensors of one shape from one sharding to another, as often as wanted.

    ``source`` and ``destination`` are pairs of a mesh (a DeviceMesh of global ranks, or ranks of
    ``group`` in lists, possibly nested) and of DTensor placements, one for each dimension of the
    mesh. The meshes may be disjoint, overlap, or be the same. Collective: every rank of ``group``
    makes it and calls it.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        source: tuple[Mesh, MeshPlacements],
        destination: tuple[Mesh, MeshPlacements],
        *,
        group: ProcessGroup | None = None,
    ) -> None:
        self._channel = weft_group(group).channel
        self._rank, size = dist.get_rank(group), dist.get_world_size(group)
        self._dtype = dtype
        self.plan = ReshardPlan(
            size,
            tuple(shape),
            _sharding("source", *source, len(shape), group),
            _sharding("destination", *destination, len(shape), group),
        )
        self.schedule = self.plan.schedule(dtype.itemsize)
        self._prepared: PreparedSchedule | None = None
        if not isinstance(self._channel, MultiHostChannel):
            self._channel.drain()
            self._prepared = prepare(self.schedule, self._channel.world, bound=True)

    @property
    def local_shape(self) -> tuple[int, ...] | None:
        """The shape of this rank's part of the destination, None if it has none."""
        box = self.plan.destination_boxes.get(self._rank)
        return None if box is None else box.shape

    def __call__(self, x: Tensor | None = None, out: Tensor | None = None) -> Tensor | None:
        """Move this rank's shard ``x`` (None without one) and return its new one, ``out`` if given.

        Ranks outside the destination get None.
        """
        with torch.no_grad():
            given = self._packed(x)
            out = self._output(out)
            taken = self._buffer(sends=False) if self._rank in self.plan.unpacked else out
            if given is not None and taken is not None and overlaps(given, taken):
                given = given.clone()  # other ranks still read it while this one writes
            if self._prepared is not None:
                self._run_schedule(given, taken)
            else:
                self._exchange(given, taken)
            if self._rank in self.plan.unpacked and out is not None and taken is not None:
                for box, part in self._parts(taken, sends=False):
                    out[_index(box)] = part
        return out

    def close(self) -> None:
        """Release what was prepared. Collective."""
        if self._prepared is not None:
            self._prepared.close()

    def _run_schedule(self, given: Tensor | None, taken: Tensor | None) -> None:
        assert self._prepared is not None
        bind = {
            name: memory_of(tensor.view(-1))
            for name, tensor in (("in", given), ("out", taken))
            if tensor is not None and tensor.numel()
        }
        self._prepared.run(bind=bind, call=self.schedule.name)

    def _exchange(self, given: Tensor | None, taken: Tensor | None) -> None:
        """Carry out the copies of the schedule between hosts: at most one for a pair of ranks."""
        nothing = torch.empty(0, dtype=self._dtype)
        outs, xs = ([nothing] * self.plan.num_ranks for _ in range(2))
        for transfer in self.plan.transfers:
            if transfer.source == self._rank and given is not None:
                at = transfer.source_offset
                xs[transfer.destination] = given.view(-1)[at : at + transfer.box.num_elements]
            if transfer.destination == self._rank and taken is not None:
                at = transfer.destination_offset
                outs[transfer.source] = taken.view(-1)[at : at + transfer.box.num_elements]
        self._channel.exchange(outs, xs, async_op=False)

    def _packed(self, x: Tensor | None) -> Tensor | None:
        held = self.plan.source_boxes.get(self._rank)
        if held is None:
            return None
        if x is None or not self._fits(x, held.shape):
            raise UsageError(
                f"x: expected {held.shape} of {self._dtype} in CPU memory on rank {self._rank} "
                f"(got {'None' if x is None else _described(x)}).",
                "Pass this rank's part of the source, as torch.chunk cuts it.",
            )
        if self._rank not in self.plan.packed:
            return contiguous_input(x)
        buffer = self._buffer(sends=True)
        for box, part in self._parts(buffer, sends=True):
            part.copy_(x[_index(box)])
        return buffer

    def _output(self, out: Tensor | None) -> Tensor | None:
        shape = self.local_shape
        if shape is None:
            return None
        if out is None:
            return torch.empty(shape, dtype=self._dtype)
        if not self._fits(out, shape) or not is_dense_contiguous(out):
            raise UsageError(
                f"out: expected a contiguous {shape} of {self._dtype} in CPU memory on rank "
                f"{self._rank} (got {_described(out)})."
            )
        return out

    def _fits(self, tensor: Tensor, shape: tuple[int, ...]) -> bool:
        fits = tensor.dtype == self._dtype and tuple(tensor.shape) == shape
        return fits and tensor.device.type == "cpu" and tensor.layout == torch.strided

    def _buffer(self, *, sends: bool) -> Tensor:
        return torch.empty(self.plan.buffer_count(self._rank, sends=sends), dtype=self._dtype)

    def _parts(self, buffer: Tensor, *, sends: bool) -> Iterable[tuple[Box, Tensor]]:
        """Yield the parts in a buffer, with their boxes in this rank's shard."""
        boxes = self.plan.source_boxes if sends else self.plan.destination_boxes
        for transfer in self.plan.transfers:
            if (transfer.source if sends else transfer.destination) != self._rank:
                continue
            at = transfer.source_offset if sends else transfer.destination_offset
            part = buffer[at : at + transfer.box.num_elements].view(transfer.box.shape)
            yield transfer.box.within(boxes[self._rank]), part


def reshard(
    x: Tensor | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    source: tuple[Mesh, MeshPlacements],
    destination: tuple[Mesh, MeshPlacements],
    *,
    group: ProcessGroup | None = None,
) -> Tensor | None:
    """Return this rank's part of a tensor under another sharding; see ``Resharding``.

    ``shape`` is that of the whole tensor, ``x`` this rank's part of the source or None. Collective.
    """
    resharding = Resharding(shape, dtype, source, destination, group=group)
    try:
        return resharding(x)
    finally:
        resharding.close()


def _described(tensor: Tensor) -> str:
    where = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    kind = "" if tensor.layout == torch.strided else f", {tensor.layout}"
    return f"{tuple(tensor.shape)} of {tensor.dtype}{where}{kind}"


def _sharding(
    what: str,
    mesh: Mesh,
    placements: MeshPlacements,
    num_dims: int,
    group: ProcessGroup | None,
) -> TensorSharding:
    ranks = _ranks_of(what, mesh, group)
    dims: list[int | None] = []
    for each in placements:
        if isinstance(each, Shard):
            dims.append(each.dim + num_dims if -num_dims <= each.dim < 0 else each.dim)
        elif isinstance(each, Replicate):
            dims.append(None)
        else:
            raise UsageError(
                f"{what}: expected placements Shard or Replicate (got {each}).",
                "Reduce partial values first.",
            )
    return TensorSharding(tuple(ranks.flatten().tolist()), tuple(ranks.shape), tuple(dims))


def _ranks_of(what: str, mesh: Mesh, group: ProcessGroup | None) -> Tensor:
    """Return the ranks in the group of a mesh; a DeviceMesh has global ones."""
    if isinstance(mesh, DeviceMesh):
        members = dist.get_process_group_ranks(group)
        everyone = mesh.mesh.flatten().tolist()
        if outside := [rank for rank in everyone if rank not in members]:
            raise UsageError(
                f"{what}: expected global ranks of the group, {members} (got {outside}).",
                "Use a group that contains both meshes.",
            )
        return torch.tensor([members.index(rank) for rank in everyone]).view(mesh.mesh.shape)
    try:
        ranks = torch.as_tensor(mesh)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what}: expected a mesh of ranks (got {mesh}): {error}.") from None
    if ranks.numel() and (ranks.is_floating_point() or ranks.is_complex()):
        raise UsageError(f"{what}: expected whole numbers of ranks (got {mesh}).")
    return ranks


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in zip(box.start, box.stop, strict=True))
