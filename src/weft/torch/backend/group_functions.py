"""Functions of a weft group besides its collectives: symmetric memory, engines, barrier."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import RunError, UsageError
from weft.runtime import Engines, RawMemory, World
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.group_base import GroupBase


def empty(
    shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    *,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Return a tensor in symmetric memory of a weft group, at the same offset on all ranks.

    Collectives on it need no copy or system call, unlike on ordinary memory. Collective: every rank
    passes the same number of bytes. It is an ordinary CPU tensor; ``free`` and the end of the group
    release its memory.
    """
    sizes = torch.Size([shape] if isinstance(shape, int) else shape)
    dtype = dtype or torch.get_default_dtype()
    nbytes = sizes.numel() * dtype.itemsize
    # At least a byte: the storage of a tensor without elements has no address to free it by.
    flat = torch.from_numpy(world_of(group).empty(max(nbytes, 1), "uint8"))
    return flat[:nbytes].view(dtype).view(sizes)


def free(tensor: Tensor, *, group: ProcessGroup | None = None) -> None:
    """Release the memory of a tensor of ``empty``. Collective."""
    storage = tensor.untyped_storage()
    if max(tensor.nbytes, 1) != storage.nbytes():
        raise RunError(
            f"free: the tensor has {tensor.nbytes} bytes of an allocation of {storage.nbytes()}.",
            "Pass the tensor of empty(), not a view of it.",
        )
    world_of(group).free(RawMemory(storage.data_ptr(), storage.nbytes()))


def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,  # noqa: FBT001, FBT002 - as torch's, in which it may be swapped
) -> None:
    """Wait for all ranks, as ``torch.distributed.monitored_barrier``, which needs Gloo.

    After ``timeout`` (by default the group's) an error on all ranks names every missing rank, with
    or without ``wait_all_ranks``. The group has failed then.
    """
    weft_group(group).monitored_barrier(timeout, wait_all_ranks)


def set_engines(engines: Engines, *, group: ProcessGroup | None = None) -> None:
    """Set the cores and priority of this rank's engines and worker; each rank for itself."""
    world_of(group).set_engines(engines)


def world_of(group: ProcessGroup | None = None) -> World:
    """Return the World of a group's ranks on this host, by default of the default group."""
    channel = weft_group(group).channel
    channel.drain()
    return channel.world


def weft_group(group: ProcessGroup | None) -> GroupBase:
    """Return the group, or the default one; raise unless it is a weft group."""
    group = group or dist.group.WORLD
    if not isinstance(group, GroupBase):
        what = "there is no process group" if group is None else f"got backend {group.name()!r}"
        raise UsageError(
            f"group: expected a weft group ({what}).",
            'Call torch.distributed.init_process_group("weft") first.',
        )
    return group


def paths(group: ProcessGroup | None = None) -> dict[str, str]:
    """Return the transports of a weft group, inside and between hosts."""
    return weft_group(group).channel.paths()
