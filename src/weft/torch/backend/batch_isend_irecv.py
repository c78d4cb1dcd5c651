"""``batch_isend_irecv`` of tensors on other devices.

torch coalesces a batch only if ``type(group) is ProcessGroup``, which a weft group is not. NCCL
needs it: sends and receives of two ranks that are launched one by one wait for each other. So
``register`` wraps torch's function, which still serves all other groups.
"""

# ruff: noqa: SLF001 - coalescing has no public names

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from weft.torch.backend.device_groups import backend_in
from weft.torch.backend.group_base import GroupBase

Batch = Callable[[list[Any]], list[Any]]


def coalesced(batch: Batch) -> Batch:
    """Return a ``batch_isend_irecv`` that coalesces calls of weft's device groups."""

    @wraps(batch)
    def call(p2p_op_list: list[Any]) -> list[Any]:
        distributed_c10d._check_p2p_op_list(p2p_op_list)
        group = p2p_op_list[0].group or dist.group.WORLD
        device = p2p_op_list[0].tensor.device
        if not isinstance(group, GroupBase) or device.type == "cpu":
            return batch(p2p_op_list)
        inner = group.device_group(device.type)
        if not getattr(backend_in(inner, device), "supports_coalescing", False):
            return batch(p2p_op_list)
        inner._start_coalescing(device)
        for each in p2p_op_list:
            act = inner.send if each.op is dist.isend else inner.recv
            act([each.tensor], each.group_peer, each.tag)
        return [inner._end_coalescing(device)]

    return call


def install_batch_isend_irecv() -> None:
    """Wrap torch's function, once."""
    if not hasattr(distributed_c10d.batch_isend_irecv, "of_weft"):
        made = coalesced(distributed_c10d.batch_isend_irecv)
        made.of_weft = True  # type: ignore[attr-defined]
        distributed_c10d.batch_isend_irecv = dist.batch_isend_irecv = made  # type: ignore[assignment]
