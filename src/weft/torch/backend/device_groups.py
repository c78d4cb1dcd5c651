"""Tensors of other devices go to a process group of theirs inside a weft group.

dist.all_reduce(x) ── WeftProcessGroup ──┬── x on the CPU: a world in shared memory
                                         └── else: inner("cuda"), which is what
                                             init_process_group("nccl") would give
"""

# ruff: noqa: SLF001 - what torch's own init_process_group does has no public names

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import UsageError
from weft.torch.backend.c10d import BackendOptions, GroupName, ProcessGroup, Store, method_of


class GroupInfo(NamedTuple):
    """Who is in a group and what its caller said about it, as torch tells a backend."""

    store: Store
    rank: int
    size: int
    timeout: timedelta
    name: str = ""
    in_world: tuple[int, ...] = ()  # the group's ranks by their numbers in the whole job
    options: Any = None  # pg_options


def make_device_group(device_type: str, ranks: GroupInfo) -> ProcessGroup:
    """Make the process group that serves tensors of a device.

    It is one of torch's own around the backend that torch has for the device, so it has every call
    of c10d: ``Backend`` alone misses some, and has older names for others.
    """
    made, kind = _backend_for(device_type, ranks)
    if isinstance(made, ProcessGroup):  # of a backend that is written in Python
        return made
    group = ProcessGroup(ranks.store, ranks.rank, ranks.size)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device_type), kind, made)
    if ranks.name:
        group._set_group_name(GroupName(f"{ranks.name}/{device_type}"))
    return group


def _backend_for(device_type: str, ranks: GroupInfo) -> tuple[Any, Any]:
    """Make torch's backend for a device, as ``init_process_group`` does."""
    name = dist.Backend.default_device_backend_map.get(device_type, "")
    plugin = dist.Backend._plugins.get(name.upper())
    if name == dist.Backend.NCCL and dist.is_nccl_available():
        return _nccl(ranks), ProcessGroup.BackendType.NCCL
    if plugin is None or name == "weft":
        raise UsageError(
            f"weft moves CPU tensors; this torch has no backend for tensors on {device_type!r}.",
            "Move them to the CPU, or install a torch with NCCL or RCCL.",
        )
    if not plugin.extended_api:
        made = plugin.creator_fn(ranks.store, ranks.rank, ranks.size, ranks.timeout)
    else:
        told = BackendOptions()
        told.store, told.timeout = ranks.store, ranks.timeout
        told.group_rank, told.group_size = ranks.rank, ranks.size
        told.group_id, told.global_ranks_in_group = ranks.name, list(ranks.in_world)
        made = plugin.creator_fn(told, ranks.options)
    return made, ProcessGroup.BackendType.CUSTOM


def _nccl(ranks: GroupInfo) -> Any:
    options = ranks.options
    if options is None:
        options = dist.ProcessGroupNCCL.Options()
    elif not isinstance(options, dist.ProcessGroupNCCL.Options):
        raise UsageError(
            f"pg_options: expected ProcessGroupNCCL.Options for CUDA tensors "
            f"(got {type(options).__name__})"
        )
    options._timeout = ranks.timeout
    options.global_ranks_in_group = list(ranks.in_world)
    options.group_name = GroupName(ranks.name)
    backend = dist.ProcessGroupNCCL(ranks.store, ranks.rank, ranks.size, options)
    backend._set_sequence_number_for_group()
    return backend


def backend_in(group: ProcessGroup, device: torch.device) -> Any:
    """Return the ``Backend`` of an inner group: what torch asks about splitting, say."""
    return group._get_backend(device) if type(group) is ProcessGroup else group


def by_device(method: Callable[..., Any]) -> Any:
    """Carry out a method here for CPU tensors, else by the inner group's of the same meaning.

    Where a plan was applied, its routes decide about those of the CPU.
    """
    name = method.__name__

    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        tensor = args[0]
        while tensor.__class__ is list:
            tensor = tensor[0] if tensor else _an_input(name, args)
        if tensor.is_cpu:
            if self.routes is not None:
                return self.routes.carry(name, method, args, options)
            return method(self, *args, **options)
        return method_of(self.device_group(tensor.device.type), name)(*args, **options)

    return call


def _an_input(name: str, args: Sequence[Any]) -> Tensor:
    """Give a tensor of the second list: only the root of a gather brings both."""
    found = args[1] if len(args) > 1 else None
    while isinstance(found, list):
        found = found[0] if found else None
    if not isinstance(found, Tensor):
        raise UsageError(f"{name} of no tensors.")
    return found
