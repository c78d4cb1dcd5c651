"""send, recv and recv_anysource of the process group."""

from torch import Tensor

from weft.torch.backend.c10d import Work
from weft.torch.backend.c10d_work import FutureCompleter, PendingWork
from weft.torch.backend.contiguity import Finish, contiguous_input, contiguous_output, single
from weft.torch.backend.device_groups import by_device
from weft.torch.backend.group_base import GroupBase
from weft.torch.backend.p2p_queue import P2PQueue, P2PRequest


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
