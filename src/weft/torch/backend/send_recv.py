"""send, recv and recv_anysource of the process group, and ``batch_isend_irecv`` of other devices.

torch coalesces a batch only if ``type(group) is ProcessGroup``, which a weft group is not. NCCL
needs it: sends and receives of two ranks that are launched one by one wait for each other. So
``install_batch_isend_irecv`` wraps torch's function, which still serves all other groups.
"""

# ruff: noqa: SLF001 - coalescing has no public names

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from weft.torch.backend.c10d import Work
from weft.torch.backend.c10d_work import FutureCompleter, PendingWork
from weft.torch.backend.contiguity import Finish, contiguous_input, contiguous_output, single
from weft.torch.backend.device_groups import backend_in, by_device
from weft.torch.backend.group_base import GroupBase
from weft.torch.backend.p2p_queue import P2PQueue, P2PRequest

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


class AnySourceWork(PendingWork):
    """The Work of a receive from any rank."""

    def __init__(
        self,
        request: P2PRequest,
        tensors: list[Tensor],
        finish: Finish | None,
        completer: FutureCompleter,
    ) -> None:
        super().__init__([request], tensors, finish, completer)
        self._request = request

    def _source_rank(self) -> int:
        """Return the rank that sent it."""
        return self._request.peer


class SendRecv(GroupBase):
    """Methods of c10d's ProcessGroup; torch documents their meaning."""

    p2p_queue: P2PQueue

    @by_device
    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> Work:
        """Send to a rank."""
        request = self.p2p_queue.post(contiguous_input(single(tensors)), dst, tag, sends=True)
        return PendingWork([request], tensors, None, self.completer)

    @by_device
    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> Work:
        """Receive from a rank, in the order of its sends with that tag."""
        buffer, finish = contiguous_output(single(tensors))
        request = self.p2p_queue.post(buffer, src, tag, sends=False)
        return PendingWork([request], tensors, finish, self.completer)

    @by_device
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Receive from the first rank that sends; the Work has its number."""
        buffer, finish = contiguous_output(single(tensors))
        others = [rank for rank in range(self.size()) if rank != self.rank()]
        request = self.p2p_queue.post_any(buffer, others, tag)
        return AnySourceWork(request, tensors, finish, self.completer)
