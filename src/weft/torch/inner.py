"""Tensors of other devices go to a backend of theirs inside a weft group."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor

from weft.errors import UsageError
from weft.torch.c10d import Store


def make_inner(device_type: str, store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    """Make the backend that serves tensors of a device."""
    if device_type == "cuda" and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout  # noqa: SLF001 - as torch itself sets it
        backend = dist.ProcessGroupNCCL(store, rank, size, options)
        backend._set_sequence_number_for_group()  # noqa: SLF001 - the same
        return backend
    raise UsageError(
        f"weft moves CPU tensors, and this torch has no backend for tensors on {device_type!r}.",
        "Move them to the CPU, or install a torch with NCCL or RCCL.",
    )


def by_device(method: Callable[..., Any]) -> Any:
    """Carry out a method here for CPU tensors, else by the inner backend's of the same name.

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
        return getattr(self.inner(tensor.device.type), name)(*args, **options)

    return call


def _an_input(name: str, args: Sequence[Any]) -> Tensor:
    """Give a tensor of the second list: only the root of a gather brings both."""
    found = args[1] if len(args) > 1 else None
    while isinstance(found, list):
        found = found[0] if found else None
    if not isinstance(found, Tensor):
        raise UsageError(f"{name} of no tensors.")
    return found
