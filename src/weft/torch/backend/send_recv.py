"""Messages from one rank to another."""

from torch import Tensor

from weft.torch.backend.c10d import Work
from weft.torch.backend.c10d_work import Completer, Pending
from weft.torch.backend.contiguity import Finish, only, readable, writable
from weft.torch.backend.device_groups import by_device
from weft.torch.backend.group_base import Group
from weft.torch.backend.p2p_queue import Letter, Mailbox


class Received(Pending):
    """A message from anyone."""

    def __init__(
        self, letter: Letter, tensors: list[Tensor], finish: Finish | None, completer: Completer
    ) -> None:
        super().__init__([letter], tensors, finish, completer)
        self._letter = letter

    def _source_rank(self) -> int:
        """Give the rank that sent it."""
        return self._letter.peer


class Messages(Group):
    """Every method is one of c10d's; torch says what it means."""

    mailbox: Mailbox

    @by_device
    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> Work:
        """Send to a rank."""
        letter = self.mailbox.post(readable(only(tensors)), dst, tag, sends=True)
        return Pending([letter], tensors, None, self.completer)

    @by_device
    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> Work:
        """Receive from a rank, in the order of its sends with that tag."""
        room, finish = writable(only(tensors))
        letter = self.mailbox.post(room, src, tag, sends=False)
        return Pending([letter], tensors, finish, self.completer)

    @by_device
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Receive from whoever sends first; its Work says who that was."""
        room, finish = writable(only(tensors))
        others = [rank for rank in range(self.size()) if rank != self.rank()]
        letter = self.mailbox.post_any(room, others, tag)
        return Received(letter, tensors, finish, self.completer)
