"""Tensors in the symmetric heap of a group: other ranks reach them without a copy."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import UsageError
from weft.runtime import Engines, World
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.group_base import GroupBase


def empty(
    shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    *,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Give a tensor in memory that all ranks of a weft group share, at one place on all of them.

    Collectives on it skip a copy or a system call that ordinary memory needs. Collective:
    every rank of the group asks for as many bytes. It is a CPU tensor like any other; its
    memory is given back by ``free`` and by the end of the group.
    """
    sizes = torch.Size([shape] if isinstance(shape, int) else shape)
    dtype = dtype or torch.get_default_dtype()
    nbytes = sizes.numel() * dtype.itemsize
    flat = torch.from_numpy(world_of(group).empty(nbytes, "uint8"))
    return flat.view(dtype).view(sizes)


def free(tensor: Tensor, *, group: ProcessGroup | None = None) -> None:
    """Give the memory of a tensor of ``empty`` back. Collective; it must not be used again."""
    world_of(group).free(tensor.detach().view(-1).view(torch.uint8).numpy())


def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,  # noqa: FBT001, FBT002 - as torch's, in which it may be swapped
) -> None:
    """Do what ``torch.distributed.monitored_barrier`` does: it takes no group but Gloo's.

    Every rank that did not come within ``timeout`` (the group's, by default) is named on all
    others, whether or not ``wait_all_ranks``. The group is broken then.
    """
    weft_group(group).monitored_barrier(timeout, wait_all_ranks)


def set_engines(engines: Engines, *, group: ProcessGroup | None = None) -> None:
    """Say where this rank's engines and worker run, and how urgently; each rank for itself."""
    world_of(group).set_engines(engines)


def world_of(group: ProcessGroup | None = None) -> World:
    """Give the world of a weft group, by default of the default group: of this host's ranks."""
    channel = weft_group(group).channel
    channel.drain()
    return channel.world


def weft_group(group: ProcessGroup | None) -> GroupBase:
    """Give the group, or the default one, if it is weft's."""
    group = group or dist.group.WORLD
    if not isinstance(group, GroupBase):
        what = "there is no process group" if group is None else f"{group.name()} is no weft group"
        raise UsageError(f"{what}.", 'Call torch.distributed.init_process_group("weft") first.')
    return group


def paths(group: ProcessGroup | None = None) -> dict[str, str]:
    """Say how bytes travel in a weft group: by shared memory, and between hosts by what."""
    return weft_group(group).channel.paths()
