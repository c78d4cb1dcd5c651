"""Process groups of other devices inside a weft group.

dist.all_reduce(x) ── WeftProcessGroup ──┬── x on the CPU: a world in shared memory
                                         └── else: device_group("cuda"), as created by
                                             init_process_group("nccl")

weft serves CPU tensors only. ``cpu:weft,cuda:nccl`` cannot be left to torch (2.13), though: a
``Backend`` has no constructor in Python, and a ProcessGroup written in Python takes the place of
the group that torch would have put it into, with the backends of other devices. So a weft group
creates these itself, as configured, and registers them with itself: calls that torch makes from
C++ and that do not reach Python go to them by torch's own dispatch.
"""

# ruff: noqa: SLF001 - what torch's own init_process_group does has no public names

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from weft.errors import UsageError
from weft.torch.backend.c10d import BackendOptions, GroupName, ProcessGroup, Store, method_of
from weft.torch.backend.c10d_work import COMPLETED
from weft.torch.backend.device_compression import broadcast_encoded


class GroupInfo(NamedTuple):
    """The ranks and options of a group, as torch passes them to a backend."""

    store: Store
    rank: int
    size: int
    timeout: timedelta
    name: str = ""
    in_world: tuple[int, ...] = ()  # global ranks of the group
    options: Any = None  # pg_options


def configured_backends(group: ProcessGroup) -> dict[str, str]:
    """Return the backend of each device, as the group was created: ``cpu:weft,cuda:nccl``."""
    config = distributed_c10d._world.pg_backend_config.get(group, "cpu:weft")
    return dict(pair.split(":") for pair in config.split(","))


def make_device_group(outer: ProcessGroup, device_type: str, ranks: GroupInfo) -> ProcessGroup:
    """Create the process group for tensors of a device, and register its backend with ``outer``.

    It is a torch ProcessGroup around torch's backend for the device, so it has every call of c10d:
    ``Backend`` alone lacks some, and has older names for others.
    """
    name = configured_backends(outer).get(device_type)
    made = _backend_for(device_type, name, ranks)
    if isinstance(made, ProcessGroup):  # a backend written in Python
        return made
    group = ProcessGroup(ranks.store, ranks.rank, ranks.size)
    group._set_default_backend(_type_of(made))
    for each in (group, outer):
        each._register_backend(torch.device(device_type), _type_of(made), made)
    if ranks.name:
        group._set_group_name(GroupName(f"{ranks.name}/{device_type}"))
    return group


def split_device_group(
    group: ProcessGroup, device_type: str, outer: ProcessGroup | None, *how: Any
) -> ProcessGroup | None:
    """Split the group of a device; register the part with ``outer``, the split weft group."""
    part = group.split_group(*how)
    if part is not None and outer is not None:
        backend = part._get_backend(torch.device(device_type))
        outer._register_backend(torch.device(device_type), _type_of(backend), backend)
    return part


def _type_of(backend: Any) -> Any:
    """Return the number by which torch knows a backend in a group."""
    return dist.Backend.backend_type_map.get(backend.name(), ProcessGroup.BackendType.CUSTOM)


def _backend_for(device_type: str, name: str | None, ranks: GroupInfo) -> Any:
    """Create the backend of a device, by default torch's, as ``init_process_group`` does."""
    name = name or dist.Backend.default_device_backend_map.get(device_type, "")
    plugin = dist.Backend._plugins.get(name.upper())
    if name == dist.Backend.NCCL and dist.is_nccl_available():
        return _nccl(ranks)
    if name == dist.Backend.GLOO:
        return dist.ProcessGroupGloo(ranks.store, ranks.rank, ranks.size, ranks.timeout)
    if plugin is None or name == "weft":
        raise UsageError(
            f"tensors: no backend for device {device_type!r} (configured: {name or 'none'}; "
            "expected nccl, gloo, or one registered with register_backend).",
            "Move them to the CPU, or install a torch with NCCL or RCCL.",
        )
    if not plugin.extended_api:
        return plugin.creator_fn(ranks.store, ranks.rank, ranks.size, ranks.timeout)
    options = BackendOptions()
    options.store, options.timeout = ranks.store, ranks.timeout
    options.group_rank, options.group_size = ranks.rank, ranks.size
    options.group_id, options.global_ranks_in_group = ranks.name, list(ranks.in_world)
    return plugin.creator_fn(options, ranks.options)


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
    """Return the ``Backend`` of a device group, which torch asks about its features."""
    return group._get_backend(device) if type(group) is ProcessGroup else group


def by_device(method: Callable[..., Any]) -> Any:
    """Return a method that serves CPU tensors here and others by the group of their device.

    If a plan was applied, its routes decide about CPU tensors.
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
        inner = self.device_group(tensor.device.type)
        if name == "broadcast" and self.compression is not None:
            encoding = self.compression.encoding_of(tensor)
            if encoding is not None:
                return _broadcast_encoded(inner, tensor, encoding, *args[1:])
        if self.device_routes is not None:
            return self.device_routes.carry(name, inner, args, options)
        return method_of(inner, name)(*args, **options)

    return call


def _broadcast_encoded(inner: Any, x: Tensor, encoding: Any, opts: Any) -> Any:
    """Broadcast by the group of a device, in encoded form; it is complete on return."""
    broadcast = method_of(inner, "broadcast")

    def send(tensor: Tensor) -> None:
        broadcast([tensor], opts).wait()

    broadcast_encoded(x, encoding, send, is_root=inner.rank() == opts.rootRank)
    return COMPLETED


def _an_input(name: str, args: Sequence[Any]) -> Tensor:
    """Return a tensor of the second list: only the root of a gather passes both."""
    found = args[1] if len(args) > 1 else None
    while isinstance(found, list):
        found = found[0] if found else None
    if not isinstance(found, Tensor):
        raise UsageError(f"{name}: expected at least one tensor.")
    return found
