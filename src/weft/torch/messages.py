"""Messages from one rank to another."""

import time

from torch import Tensor

from weft.errors import RunTimeoutError
from weft.torch.c10d import Work
from weft.torch.group import Group
from weft.torch.inner import by_device
from weft.torch.mailbox import Mailbox
from weft.torch.plain import only, readable, writable
from weft.torch.work import Received

_PAUSE = 50e-6  # seconds between looks for a message from anyone


class Messages(Group):
    """Every method is one of c10d's; torch says what it means."""

    mailbox: Mailbox

    @by_device
    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> Work:
        """Send to a rank."""
        x = readable(only(tensors))
        letter = self.mailbox.post(x, dst, tag, sends=True)
        return self.work(tensors, letter, keep=x)

    @by_device
    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> Work:
        """Receive from a rank, in the order of its sends with that tag."""
        room, finish = writable(only(tensors))
        letter = self.mailbox.post(room, src, tag, sends=False)
        return self.work(tensors, letter, finish, room)

    @by_device
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Receive from whoever sends first; its Work says who that was."""
        room, finish = writable(only(tensors))
        others = [rank for rank in range(self.size()) if rank != self.rank()]
        offers = {src: self.channel.probe(room, src, tag) for src in others}
        deadline = time.monotonic() + self.timeout.total_seconds()
        while time.monotonic() < deadline:
            for src, offer in offers.items():
                if offer.is_done():
                    if finish is not None:
                        finish()
                    return Received(src)
            self.channel.require_sound()
            time.sleep(_PAUSE)
        raise RunTimeoutError(f"nobody sent to rank {self.rank()} within {self.timeout}.")
